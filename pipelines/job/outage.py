"""Outages of Kafka or the store: the errors that show them, and the back-off of the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from pipelines.epoch.runner import EpochRunner
from pipelines.errors import JobError, KafkaAwayError, KafkaRefusedError, LostInputError
from pipelines.jvm.spark_settings import java_cause
from storage.errors import LakeError, StoreAwayError
from storage.lake.store_error import store_error
from storage.tasks.kafka_reader import GONE

log = logging.getLogger("txlake.driver")

_RETRY_S = (1.0, 2.0, 5.0, 10.0)
_LOG_S = 60.0  # between two lines about one outage
# The words of Spark and of the Kafka clients when the broker does not answer.
_AWAY_SIGNS = (
    "TimeoutException",
    "Timed out",
    "timed out",
    "Connection refused",
    "DisconnectException",
    "No resolvable bootstrap",
    "Failed to construct kafka",
    "BROKER_NOT_AVAILABLE",
    "Timeout of",
    "Cannot fetch offset",
)
# The names of the Java client's exceptions when the broker refuses.
_REFUSED_SIGNS = ("AuthorizationException", "AuthenticationException")
_TEXT_MAX = 300


def classify_error(error: BaseException, epochs: EpochRunner) -> BaseException:
    """Returns the error of a failed query as one of ours, if it is known."""
    if isinstance(error, LostInputError) and GONE in str(error):
        return _lost_offsets_error(epochs) or error
    if isinstance(error, (JobError, LakeError)):
        return error
    error_of_store = store_error(epochs.location, error)
    if error_of_store is not None:
        return error_of_store

    # A client of Java's that cannot be made says why in the cause alone.
    text = f"{error}\n{java_cause(error)}"
    refusal = _line_with(text, _REFUSED_SIGNS)
    if refusal is not None:
        return KafkaRefusedError(f"Kafka refuses the stream: {refusal}")

    loss = _line_with(text, _AWAY_SIGNS)
    if loss is not None:
        return KafkaAwayError(f"the stream lost Kafka: {loss}")

    if "some data may have been lost" in text.lower():
        return _lost_offsets_error(epochs) or error
    return error


def _lost_offsets_error(epochs: EpochRunner) -> JobError | None:
    """Returns the error with the lost offsets, if Kafka can still tell."""
    try:
        epochs.start_offsets()
    except JobError as lost:
        return lost
    return None


def _line_with(text: str, signs: Collection[str]) -> str | None:
    """Returns the first line that has one of some signs; None if there is none."""
    lines = (line for line in text.splitlines() if any(sign in line for sign in signs))
    line = next(lines, None)
    return None if line is None else line.strip()[:_TEXT_MAX]


class OutageBackoff:
    """The waits while Kafka or the store is away, or refuses this job, with lines in the log.

    Input: the names of both in the log; `stop`: set when the driver is to end.
    """

    def __init__(self, kafka: str, store: str, stop: threading.Event) -> None:
        self._kafka = kafka
        self._store = store
        self._stop = stop
        self._outage_text = ""
        self._recovery_text = ""
        self._began_at: float | None = None  # monotonic s, as is the next
        self._logged_at: float | None = None
        self._tries = 0

    def until_done(self, step: Callable[[], None]) -> bool:
        """Calls a step, again and again while Kafka or the store is away.

        Output: whether it ended; else `stop` is set. Errors: the step's, but for these two.
        """
        while not self._stop.is_set():
            try:
                step()
            except (KafkaAwayError, StoreAwayError) as error:
                self.wait(error)
            else:
                self.log_recovery()
                return True
        return False

    def wait(self, error: KafkaAwayError | StoreAwayError) -> None:
        """Logs the outage, once a minute, and waits before the next try."""
        now = time.monotonic()
        self._began_at = self._began_at or now

        text_before = self._outage_text
        self._describe(error)
        is_news = (
            self._logged_at is None
            or self._outage_text != text_before
            or now - self._logged_at >= _LOG_S
        )
        if is_news:
            self._logged_at = now

        delay_s = self._next_delay_s()
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "%s, for %.0f s so far; trying again in %.0f s (%s)",
            self._outage_text,
            now - self._began_at,
            delay_s,
            error,
        )
        log.debug("how that was noticed", exc_info=error)
        self._stop.wait(delay_s)

    def _describe(self, error: KafkaAwayError | StoreAwayError) -> None:
        """Sets the texts for the log."""
        name = self._store if isinstance(error, StoreAwayError) else self._kafka
        if isinstance(error, KafkaRefusedError):
            self._outage_text = f"{name} refuses this job"
            self._recovery_text = f"{name} lets this job in again"
        else:
            self._outage_text = f"{name} is away"
            self._recovery_text = f"{name} is back"

    def _next_delay_s(self) -> float:
        delay_s = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._tries += 1
        return delay_s

    def log_recovery(self) -> None:
        """Logs the end of an outage and its length, if there was one."""
        if self._began_at is not None:
            log.warning("%s after %.0f s", self._recovery_text, time.monotonic() - self._began_at)

        self._began_at = None
        self._logged_at = None
        self._tries = 0
