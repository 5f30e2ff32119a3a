"""Kafka topics of one test, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from tests.support.kafka_admin import admin_client
from tests.support.wait import DEADLINE_S, wait_until
from txlake import ProducerOptions, protocol


@dataclass(frozen=True)
class Record:
    """One Kafka record."""

    partition: int
    offset: int
    body: bytes | None
    names: list[str]
    headers: dict[str, str]

    @property
    def half_offsets(self) -> list[int]:
        return [int(text) for text in (self.body or b"").decode().split(",") if text]


class TransactionTopics:
    """Make a test's own half, op and schedule topics; read them whole."""

    def __init__(self, bootstrap_servers: str, name: str, partitions: int = 4) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.half, self.op = f"half-{name}", f"op-{name}"
        self.schedule = f"schedule-{name}"
        self.check_prefix = f"check-{name}-"
        self._admin = admin_client(bootstrap_servers)
        self.make(self.half, partitions)
        self.make(self.op, partitions)

    def make(self, topic: str, partitions: int, **config: str) -> None:
        config = {"message.timestamp.type": "LogAppendTime", **config}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        self._admin.create_topics([new])[topic].result(DEADLINE_S)
        # Made is not yet known everywhere: a client may hear for a moment that there is no such.
        wait_until(
            lambda: topic in self._admin.list_topics(timeout=DEADLINE_S).topics, f"no {topic}"
        )

    def options(self, **options: Any) -> ProducerOptions:
        return ProducerOptions(
            half_topic=self.half,
            op_topic=self.op,
            schedule_topic=self.schedule,
            check_topic_prefix=self.check_prefix,
            **options,
        )

    def records(self, topic: str) -> list[Record]:
        """Read everything a topic holds now, by partition and offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )

        try:
            ends = {}
            known = consumer.list_topics(topic, timeout=DEADLINE_S).topics
            for partition in known[topic].partitions:
                at = TopicPartition(topic, partition)
                low, high = consumer.get_watermark_offsets(at, timeout=DEADLINE_S)
                if low < high:
                    ends[partition] = high

            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            records = []

            while ends:
                message = consumer.poll(DEADLINE_S)
                assert message is not None, f"{topic}: {ends} were not reached"
                assert message.error() is None, message.error()
                record = _record(message)
                records.append(record)

                if record.offset + 1 >= ends.get(record.partition, 0):
                    ends.pop(record.partition, None)
            return sorted(records, key=lambda record: (record.partition, record.offset))
        finally:
            consumer.close()

    def wait_for(self, topic: str, is_enough: Callable[[list[Record]], bool]) -> list[Record]:
        """Read a topic until it holds enough, or fail saying what it holds."""
        records: list[Record] = []

        def look() -> bool:
            records[:] = self.records(topic)
            return is_enough(records)

        wait_until(look, f"enough records in {topic}", seen=lambda: records)
        return records

    def ask(
        self,
        group: str,
        half: tuple[int, str],
        transaction_id: str,
        body: bytes | None = b"body",
        **extra: str,
    ) -> None:
        """Send a check, as the reconciler does: (half queue, half offsets)."""
        headers = {
            protocol.PGROUP: group,
            protocol.UNIQ_KEY: transaction_id,
            protocol.REAL_TOPIC: "orders",
            protocol.HALF_QUEUE_ID: str(half[0]),
            protocol.HALF_QUEUE_OFFSET: half[1],
            protocol.CHECK_TIMES: "1",
            protocol.CHECK_ID: f"{half[0]}-{half[1]}-0-1",
            **extra,
        }

        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        errors: list[KafkaError | None] = []

        producer.produce(
            self.check_prefix + group,
            body,
            headers=list(headers.items()),
            on_delivery=lambda error, _record: errors.append(error),
        )
        producer.flush(DEADLINE_S)
        assert errors == [None]


def _record(message: Any) -> Record:
    headers = message.headers() or []
    return Record(
        message.partition(),
        message.offset(),
        message.value(),
        [name for name, _ in headers],
        {name: value.decode() for name, value in headers},
    )
