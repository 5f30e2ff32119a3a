"""Kafka asked now and then, beside the stream: a stream that hangs does not tell how it lags."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from pipelines.errors import JobError
from pipelines.kafka_log.topics import KafkaTopics, Place
from pipelines.metrics.lag import Lag
from pipelines.settings import Settings

log = logging.getLogger("txlake.metrics")

_INTERVAL_S: Final = 5.0


class Probe:
    """A thread that asks Kafka for its ends. `is_up`: whether it answered; None: not asked yet."""

    def __init__(self, settings: Settings, lag: Lag) -> None:
        self._settings, self._lag = settings, lag
        self.is_up: bool | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlake-probe", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def close(self) -> None:
        """Asks no more. A request that runs is not waited for."""
        self._ending.set()

    def _run(self) -> None:
        topics: KafkaTopics | None = None
        places: list[Place] = []
        while not self._ending.is_set():
            try:
                topics = topics or KafkaTopics(self._settings, self._settings.kafka.topics())
                places = places or topics.places()
                asked_at = time.time_ns() // 1_000_000
                self._lag.asked(asked_at, topics.end_offsets(places))
                self.is_up = True
            except JobError as error:
                log.debug("%s", error)
                self.is_up, places = False, []
            except Exception:  # the thread goes on: else the metric would say `up` for ever
                log.exception("Kafka's ends could not be read")
                self.is_up, places = False, []
            self._ending.wait(_INTERVAL_S)
