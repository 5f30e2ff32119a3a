"""Read what the demo publishes to Kafka, as any consumer does."""

from __future__ import annotations

from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from txlake.protocol import UNIQ_KEY

_LOOK_S: Final = 0.2
_MESSAGES_MAX: Final = 1_000


class KafkaTopic:
    """Read one topic from its beginning, committed records only; keep their transaction ids.

    It joins no group: it takes all partitions as they are known, and is no part of the demo.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._partitions: set[int] = set()
        self._ids: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "txlake-demo",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )

    def transaction_ids(self) -> tuple[str, ...]:
        """Read what is new. Return the ids of all that were read so far, in the order of coming."""
        try:
            self._take_partitions()
            records = self._consumer.consume(_MESSAGES_MAX, _LOOK_S) if self._partitions else []
        except KafkaException:  # a busy machine: the next look asks again
            return tuple(self._ids)

        for record in records:
            if record.error() is None:
                headers = dict(record.headers() or ())
                self._ids.append(bytes(headers[UNIQ_KEY] or b"").decode())
        return tuple(self._ids)

    def close(self) -> None:
        """Give the client back; what was read stays."""
        self._consumer.close()

    def _take_partitions(self) -> None:
        topics = self._consumer.list_topics(timeout=5).topics
        partitions = set(topics[self._topic].partitions) if self._topic in topics else set()

        if new := partitions - self._partitions:
            self._consumer.incremental_assign(
                [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in sorted(new)]
            )
            self._partitions |= new
