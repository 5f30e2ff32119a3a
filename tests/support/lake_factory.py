"""Lakes for the consumer's tests, written by delta-rs as the job lays them out."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.wait import DEADLINE_S
from txlake import ConsumedMessage, Consumer
from txlake._consumer_offsets import Commit, ConsumerOffsets

UTC = dt.timezone.utc
EPOCH_AT = dt.datetime(2026, 1, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="UTC")

LAKE = pa.schema(
    [("lake_id", pa.string()), ("format_version", pa.int32()), ("created_at", INSTANT)]
)
CATALOG = pa.schema(
    [
        ("topic", pa.string()),
        ("table_id", pa.int64()),
        ("queue_count", pa.int32()),
        ("epoch", pa.int64()),
        ("created_at", INSTANT),
    ]
)
TOPIC = pa.schema(
    [
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("stored_at", INSTANT),
        ("source", pa.string()),
        ("born_at", INSTANT),
        ("producer_group", pa.string()),
        ("transaction_id", pa.string()),
        ("real_topic", pa.string()),
        ("asked_queue_id", pa.int32()),
        ("reason", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("half_queue_id", pa.int32()),
        ("half_queue_offset", pa.int64()),
        ("raw_headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("epoch", pa.int64()),
    ]
)


EPOCHS = pa.schema([("epoch", pa.int64()), ("state", pa.string()), ("epoch_at", INSTANT)])


class LakeFactory:
    """Make a lake and put messages into it, one Delta commit for each epoch."""

    def __init__(self, path: Path, format_version: int = 1) -> None:
        self.path = path
        self._epoch = 0
        self._next: dict[tuple[str, int], int] = {}
        self._table_ids: dict[str, int] = {}
        self._write(
            "lake",
            LAKE,
            [{"lake_id": "a", "format_version": format_version, "created_at": EPOCH_AT}],
        )

    def table(self, topic: str) -> Path:
        return self.path / "topics" / str(self._table_ids[topic])

    def catalog_row(self, topic: str, queue_count: int) -> None:
        self._table_ids.setdefault(topic, len(self._table_ids))

        self._write(
            "catalog",
            CATALOG,
            [
                {
                    "topic": topic,
                    "table_id": self._table_ids[topic],
                    "queue_count": queue_count,
                    "epoch": self._epoch,
                    "created_at": EPOCH_AT,
                }
            ],
        )

    def make_topic(self, topic: str, queue_count: int) -> None:
        self.catalog_row(topic, queue_count)
        DeltaTable.create(str(self.table(topic)), TOPIC)

    def deliver(self, topic: str, counts: Mapping[int, int], **columns: Any) -> None:
        """Add so many messages to each queue, in one epoch."""
        rows = []
        for queue_id, count in counts.items():
            first = self._next.get((topic, queue_id), 0)
            self._next[topic, queue_id] = first + count
            rows += [
                self.row(queue_id, queue_offset, **columns)
                for queue_offset in range(first, first + count)
            ]
        self.write_rows(topic, rows)

    def row(self, queue_id: int, queue_offset: int, **columns: Any) -> dict[str, Any]:
        return {
            "queue_id": queue_id,
            "queue_offset": queue_offset,
            "stored_at": EPOCH_AT,
            "source": "half",
            "producer_group": "orders-group",
            "transaction_id": f"t-{queue_id}-{queue_offset}",
            "keys": "k",
            "properties": [("colour", "red")],
            "body": f"{queue_id}:{queue_offset}".encode(),
            "half_queue_id": 0,
            "half_queue_offset": queue_offset,
            "epoch": self._epoch,
            **columns,
        }

    def committed_rows(self) -> list[Commit]:
        """Returns the newest rows of `consumer_offsets`, as another process sees them."""
        return list(ConsumerOffsets(str(self.path / "consumer_offsets")).newest().values())

    def write_rows(self, topic: str, rows: Iterable[dict[str, Any]]) -> None:
        self._epoch += 1
        self._write(f"topics/{self._table_ids[topic]}", TOPIC, rows)

    def epoch_row(self, epoch: int, epoch_at: dt.datetime) -> None:
        self._write(
            "epochs", EPOCHS, [{"epoch": epoch, "state": "committed", "epoch_at": epoch_at}]
        )

    def _write(self, table: str, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> None:
        full = [{name: row.get(name) for name in schema.names} for row in rows]
        data = pa.Table.from_pylist(full, schema=schema)
        write_deltalake(str(self.path / table), data, mode="append")


def poll_all(consumer: Consumer, count: int, most: int = 500) -> list[ConsumedMessage]:
    """Poll until so many messages came, or fail saying what came."""
    messages: list[ConsumedMessage] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        messages += consumer.poll(0.2, most)
    return messages


def places(messages: list[ConsumedMessage], queue_id: int) -> list[int]:
    return [message.queue_offset for message in messages if message.queue_id == queue_id]
