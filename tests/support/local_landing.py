"""Epochs without Spark: their records are read and landed by the process that decides them.

A landing is the one that Spark's tasks run (`storage/tasks/land.py`); only Spark's way of calling
it is missing. So a driver is a process of 0.1 GB that begins within a second, and a test can have
many of them. All that writes into the lake is the job's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from pipelines.epoch.batch import Batch, rows_by_kind
from pipelines.kafka_client.record_reader import KAFKA
from storage.files.data_files import DataFile
from storage.lake.epochs import Range
from storage.rows import instant
from storage.tasks.land import Landing, read_landed

_READ_S = 30.0


@dataclass(frozen=True)
class LocalLander:
    """A lander that is this process: one task."""

    parallelism: int = 1
    spark: None = None

    def read(self, ranges: tuple[Range, ...], options: Mapping[str, str]) -> pa.Table:
        """Returns recorded ranges as Spark's source gives them. Input: the source's options."""
        ends = {r.place: r.to_offset for r in ranges if r.to_offset > r.from_offset}
        starts = [
            TopicPartition(r.topic, r.partition, r.from_offset) for r in ranges if r.place in ends
        ]
        consumer = Consumer(
            {
                "bootstrap.servers": options["kafka.bootstrap.servers"],
                "group.id": "local-landing",
                "enable.auto.commit": False,
            }
        )
        rows: list[dict[str, Any]] = []

        try:
            consumer.assign(starts)
            while ends:
                message: Any = consumer.poll(_READ_S)
                assert message is not None and message.error() is None, (message, ends)

                place = message.topic(), message.partition()
                if message.offset() < ends.get(place, 0):
                    rows.append(_row(message))
                if message.offset() + 1 >= ends.get(place, 0):
                    ends.pop(place, None)
        finally:
            consumer.close()

        return pa.Table.from_pylist(rows, schema=KAFKA)

    def land(
        self,
        records: pa.Table,
        landing: Landing,
        tasks: int,
        _plainly: Callable[[], Iterator[pa.RecordBatch]],
    ) -> Batch:
        """Lands records in this process. Input: as `pipelines.epoch.land.land`."""
        files: defaultdict[str, list[DataFile]] = defaultdict(list)

        def parts() -> Iterator[pa.Table]:
            for batch in landing(records.to_batches()):
                for rows, written in read_landed(batch):
                    yield rows
                    for table, new in written.items():
                        files[table] += new

        batch = Batch(rows_by_kind(parts()), files)
        batch.tasks = tasks
        return batch

    def warm_up(self, landing: Landing, tasks: int) -> None:
        """Does nothing: there is nothing to start."""


def _row(message: Any) -> dict[str, Any]:
    headers = message.headers()

    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": instant(message.timestamp()[1]),
        "key": message.key(),
        "value": message.value(),
        "headers": headers and [{"key": name, "value": value} for name, value in headers],
    }
