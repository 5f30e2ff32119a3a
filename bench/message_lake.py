"""A lake with one topic that a benchmark commits epochs of messages to, without Kafka and Spark."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from checker.frames import RULE_VERSION
from storage.lake.epoch_log import write_commit, write_plan
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS
from storage.rows import instant
from storage.schemas import CATALOG, HALF, TOPIC

QUEUES = 4
TOPIC_NAME = "orders"
_MS = 1_000_000


class MessageLake:
    """A lake with one topic, to which epochs of messages are committed."""

    def __init__(self, path: Path, body_bytes: int) -> None:
        self.lake = Lake(str(path))
        self.lake.create(instant(time.time_ns() // _MS))
        self._progress = NO_PROGRESS
        self._body_bytes = body_bytes
        self._random = np.random.default_rng(1)
        self.epoch = 0
        self.next_offset = 0  # of each queue

    def commit(self, messages: int) -> None:
        """Commits an epoch with so many messages, an equal share of each queue."""
        self.epoch += 1
        at = time.time_ns() // _MS

        plan = Plan(
            self.epoch,
            at,
            {},
            {},
            (),
            "cluster",
            {},
            {"wire": {"topics": {}}},
            "bench",
            RULE_VERSION,
        )

        self._progress = write_plan(self.lake, self._progress, plan)

        each = messages // QUEUES
        offsets = np.tile(np.arange(self.next_offset, self.next_offset + each), QUEUES)
        queues = np.repeat(np.arange(QUEUES), each)
        count = len(offsets)

        common = {
            "queue_id": queues,
            "queue_offset": offsets,
            "stored_at": pa.array([at * 1_000] * count, pa.timestamp("us", "UTC")),
            "producer_group": ["shop"] * count,
            "transaction_id": [f"{q:08x}-{o:027x}" for q, o in zip(queues, offsets, strict=True)],
            "real_topic": [TOPIC_NAME] * count,
            "keys": [f"order-{offset}" for offset in offsets],
            "epoch": [self.epoch] * count,
        }

        message = {
            **common,
            "source": ["half"] * count,
            "properties": [[("colour", "red")]] * count,
            "body": self._bodies(count),
            "half_queue_id": queues,
            "half_queue_offset": offsets,
        }

        if self.epoch == 1:
            row = {
                "topic": TOPIC_NAME,
                "table_id": 1,
                "queue_count": QUEUES,
                "epoch": 1,
                "created_at": instant(at),
            }
            self.lake.append("catalog", pa.Table.from_pylist([row], schema=CATALOG), 1)
            self.lake.create_table("topics/1")

        self.lake.append("half", _table(common, HALF, count), self.epoch)
        self.lake.append("topics/1", _table(message, TOPIC, count), self.epoch)
        self.next_offset += each

        ends = {(TOPIC_NAME, queue): self.next_offset for queue in range(QUEUES)}
        counts = {"committed": count}
        self._progress = write_commit(self.lake, self._progress, plan, ends, counts, {})

    def _bodies(self, count: int) -> list[bytes]:
        """Returns bodies like JSON: half of each is random."""
        half = self._body_bytes // 2
        data = self._random.bytes(count * half)
        filler = b'{"order":"' + b"x" * (self._body_bytes - half - 10)
        return [filler + data[number * half : (number + 1) * half] for number in range(count)]


def _table(columns: dict[str, object], schema: pa.Schema, count: int) -> pa.Table:
    return pa.table(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(count, field.type)
            for field in schema
        ],
        schema=schema,
    )
