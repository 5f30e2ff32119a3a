"""A thread that queries Kafka beside the stream, whose lag shows even if the stream hangs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from pipelines.errors import JobError
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.metrics.lag import Lag
from pipelines.settings import Settings
from txlake.protocol import check_topic

log = logging.getLogger("txlake.metrics")

_INTERVAL_S: Final = 5.0
_TOPICS_S: Final = 30.0  # with thousands of topics the reply is large


class Probe:
    """A thread that queries Kafka for its end offsets and its topics.

    `is_up`: whether it answered; None before the first query. `topics`: the topics of Kafka; None
    if not known.
    """

    def __init__(self, settings: Settings, lag: Lag) -> None:
        self._settings = settings
        self._lag = lag
        self.is_up: bool | None = None
        self.topics: frozenset[str] | None = None

        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlake-probe", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, without waiting for a running request."""
        self._ending.set()

    def without_topic(self, groups: Iterable[str]) -> list[str]:
        """Returns the producer groups that have no check topic; none if the topics are not known.

        If no checks are ever sent, no group needs one.
        """
        topics = self.topics
        if topics is None or self._settings.transaction.check_max == 0:
            return []

        prefix = self._settings.kafka.check_topic_prefix
        return [group for group in groups if check_topic(group, prefix) not in topics]

    def _run(self) -> None:
        kafka: KafkaAdmin | None = None
        partitions: list[Partition] = []
        partitions_read_s = -_TOPICS_S
        topics_read_s = -_TOPICS_S

        while not self._ending.is_set():
            try:
                kafka = kafka or KafkaAdmin(self._settings, self._settings.kafka.topics())
                if not partitions or time.monotonic() - partitions_read_s >= _TOPICS_S:
                    partitions = kafka.partitions()  # a topic can get more
                    partitions_read_s = time.monotonic()

                queried_at = time.time_ns() // 1_000_000
                self._lag.observe_ends(queried_at, kafka.end_offsets(partitions))
                self.is_up = True

                if time.monotonic() - topics_read_s >= _TOPICS_S:
                    self.topics = kafka.existing_names()
                    topics_read_s = time.monotonic()
            except JobError as error:
                log.debug("%s", error)
                self.is_up = False
                partitions = []
            except Exception:  # the thread goes on: else the metric would say `up` for ever
                log.exception("Kafka's ends could not be read")
                self.is_up = False
                partitions = []

            self._ending.wait(_INTERVAL_S)
