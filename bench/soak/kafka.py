"""Kafka as far as an epoch knows it, in memory: records until they are landed, offsets, a clock.

There is no broker: records are stored at instants of the simulated clock, which a broker's
LogAppendTime cannot be. What was landed is dropped, so this Kafka does not grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from pipelines.epoch.checks import KafkaCheckSender
from pipelines.kafka_client.connection import Partition
from storage.rows import instant
from storage.wire.decode import KAFKA
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

TOPICS = {
    HALF: p.HALF_TOPIC,
    OP: p.OP_TOPIC,
    SCHEDULE: p.SCHEDULE_TOPIC,
    ADMIN: p.ADMIN_TOPIC,
}
QUEUES = 3
EPOCH_MS = 60_000  # the simulated clock between two epochs
_PARTITIONS = {HALF: QUEUES, OP: QUEUES, SCHEDULE: 2, ADMIN: 1}
Header = tuple[str, bytes | None]


class MemoryKafka:
    """The four topics of a job. `now_ms`: when the next record is stored."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._waiting: list[dict[str, Any]] = []
        self._ends: Counter[Partition] = Counter()

    def send(self, kind: str, queue: int, body: bytes | None, headers: Sequence[Header]) -> int:
        """Stores a record. Output: its offset."""
        partition = TOPICS[kind], queue
        offset = self._ends[partition]
        self._ends[partition] += 1

        self._waiting.append(
            {
                "topic": partition[0],
                "partition": queue,
                "offset": offset,
                "timestamp": instant(self.now_ms),
                "key": None,
                "value": body,
                "headers": [{"key": name, "value": value} for name, value in headers],
            }
        )

        return offset

    def next_offset(self, kind: str, queue: int) -> int:
        """Returns the offset that the next record of a partition gets."""
        return self._ends[TOPICS[kind], queue]

    def take(self) -> pa.Table:
        """Returns the records that wait, as Spark's source gives them, and drops them."""
        rows = self._waiting
        self._waiting = []
        rows.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
        return pa.Table.from_pylist(rows, schema=KAFKA)

    def partitions(self) -> list[Partition]:
        """Returns all partitions."""
        return [
            (topic, partition)
            for kind, topic in TOPICS.items()
            for partition in range(_PARTITIONS[kind])
        ]

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns where partitions end."""
        return {partition: self._ends[partition] for partition in partitions}

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns where partitions began: nobody reads below the committed ends."""
        return dict.fromkeys(partitions, 0)

    def cluster_id(self) -> str:
        """Returns the id of the cluster."""
        return "in-memory"

    def topic_ids(self) -> dict[str, str]:
        """Returns the id of each topic."""
        return {topic: topic for topic in TOPICS.values()}


class MemoryAsker(KafkaCheckSender):
    """The job's asker; its checks go to a function that takes their headers.

    Input: the producer groups that have a check topic.
    """

    def __init__(self, groups: Iterable[str], take: Callable[[dict[str, str]], None]) -> None:
        self._prefix = p.CHECK_TOPIC_PREFIX
        self._keys = {}
        self._timeout_s = 60.0
        self._producer: Any = _Checks({p.check_topic(group) for group in groups}, take)


class _Checks:
    """What the asker has in place of Kafka's producer: each check is acknowledged at once."""

    def __init__(self, topics: set[str], take: Callable[[dict[str, str]], None]) -> None:
        self._topics = topics
        self._take = take

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics=self._topics)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        headers: Sequence[tuple[str, str | bytes | None]],
        on_delivery: Callable[[None, None], None],
    ) -> None:
        texts = {name: v.decode() for name, v in headers if isinstance(v, bytes)}
        self._take(texts)
        on_delivery(None, None)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        return 0

    def purge(self) -> None:
        """Does nothing: no check waits."""
