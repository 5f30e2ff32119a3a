"""Kafka or the store away, or refusing: how that shows, and how long the driver waits then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pipelines.epoch.runner import EpochRunner
from pipelines.errors import JobError, KafkaAwayError, KafkaRefusedError
from storage.errors import LakeError, StoreAwayError
from storage.lake.store_error import store_error

log = logging.getLogger("txlake.driver")

_RETRY_S = (1.0, 2.0, 5.0, 10.0)
_TELL_S = 60.0  # between two lines about one absence
# The words of Spark and of the Kafka clients when the broker does not answer.
_AWAY_SIGNS = (
    "TimeoutException", "Timed out", "timed out", "Connection refused", "DisconnectException",
    "No resolvable bootstrap", "Failed to construct kafka", "BROKER_NOT_AVAILABLE",
    "Timeout of", "Cannot fetch offset",
)  # fmt: skip
# The names of the Java client's exceptions when the broker refuses.
_REFUSED_SIGNS = ("AuthorizationException", "AuthenticationException")
_TEXT_MAX = 300


def classify_error(error: BaseException, epochs: EpochRunner) -> BaseException:
    """Returns the error of a failed query as one of ours, if it is known."""
    if isinstance(error, (JobError, LakeError)):
        return error
    trouble = store_error(epochs.place, error)
    if trouble is not None:
        return trouble
    text = str(error)
    if any(sign in text for sign in _REFUSED_SIGNS):
        said = next(
            line for line in text.splitlines() if any(sign in line for sign in _REFUSED_SIGNS)
        )
        return KafkaRefusedError(f"Kafka refuses the stream: {said.strip()[:_TEXT_MAX]}")
    if any(sign in text for sign in _AWAY_SIGNS):
        return KafkaAwayError(f"the stream lost Kafka: {text.strip().splitlines()[0][:_TEXT_MAX]}")
    if "Could not read records in offset" in text or "some data may have been lost" in text.lower():
        try:
            epochs.start_offsets()
        except JobError as lost:  # what is lost, if Kafka can still tell
            return lost
    return error


class OutageBackoff:
    """How long Kafka or the store has been away, or has refused this job, told in the log.

    Input: what they are called; `stop`: set when nobody is to wait any more.
    """

    def __init__(self, kafka: str, store: str, stop: threading.Event) -> None:
        self._kafka, self._store, self._stop = kafka, store, stop
        self._state, self._is_over = "", ""
        self._since: float | None = None
        self._told_at: float | None = None
        self._tries = 0

    def until_done(self, step: Callable[[], None]) -> bool:
        """Takes a step, again and again while Kafka or the store is away.

        Output: whether it was taken; else `stop` is set. Errors: the step's, but those two.
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
        """Logs how it is, once a minute, and waits before the next try."""
        now, state = time.monotonic(), self._state
        what = self._store if isinstance(error, StoreAwayError) else self._kafka
        self._state, self._is_over = f"{what} is away", f"{what} is back"
        if isinstance(error, KafkaRefusedError):
            self._state, self._is_over = (
                f"{what} refuses this job",
                f"{what} lets this job in again",
            )
        self._since = self._since or now
        is_news = self._told_at is None or self._state != state or now - self._told_at >= _TELL_S
        if is_news:
            self._told_at = now
        pause = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._tries += 1
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "%s, for %.0f s so far; trying again in %.0f s (%s)",
            self._state, now - self._since, pause, error,
        )  # fmt: skip
        log.debug("how that was noticed", exc_info=error)
        self._stop.wait(pause)

    def log_recovery(self) -> None:
        """Logs how long it was so, if it was."""
        if self._since is not None:
            log.warning("%s after %.0f s", self._is_over, time.monotonic() - self._since)
        self._since, self._told_at, self._tries = None, None, 0
