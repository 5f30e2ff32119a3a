"""Kafka asked now and then, beside the stream: a stream that hangs does not tell how it lags."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from pipelines.errors import JobError
from pipelines.kafka_client.admin import KafkaAdmin, Partition
from pipelines.metrics.lag import Lag
from pipelines.settings import Settings
from txlake.protocol import check_topic

log = logging.getLogger("txlake.metrics")

_INTERVAL_S: Final = 5.0
_TOPICS_S: Final = 30.0  # of thousands of topics the answer is large


class Probe:
    """A thread that asks Kafka for its ends and its topics.

    `is_up`: whether it answered; None: not asked yet. `topics`: which Kafka has; None: not known.
    """

    def __init__(self, settings: Settings, lag: Lag) -> None:
        self._settings, self._lag = settings, lag
        self.is_up: bool | None = None
        self.topics: frozenset[str] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlake-probe", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def close(self) -> None:
        """Asks no more. A request that runs is not waited for."""
        self._ending.set()

    def without_topic(self, groups: Iterable[str]) -> list[str]:
        """Returns which producer groups have no check topic; none where it is not known.

        Where nobody is ever asked, none needs one.
        """
        there, prefix = self.topics, self._settings.kafka.check_topic_prefix
        if there is None or self._settings.transaction.check_max == 0:
            return []
        return [group for group in groups if check_topic(group, prefix) not in there]

    def _run(self) -> None:
        topics: KafkaAdmin | None = None
        places: list[Partition] = []
        looked_at = -_TOPICS_S
        while not self._ending.is_set():
            try:
                topics = topics or KafkaAdmin(self._settings, self._settings.kafka.topics())
                places = places or topics.places()
                asked_at = time.time_ns() // 1_000_000
                self._lag.observe_ends(asked_at, topics.end_offsets(places))
                self.is_up = True
                if time.monotonic() - looked_at >= _TOPICS_S:
                    self.topics = topics.existing_names()
                    looked_at = time.monotonic()
            except JobError as error:
                log.debug("%s", error)
                self.is_up, places = False, []
            except Exception:  # the thread goes on: else the metric would say `up` for ever
                log.exception("Kafka's ends could not be read")
                self.is_up, places = False, []
            self._ending.wait(_INTERVAL_S)
