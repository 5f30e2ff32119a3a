"""Epochs without Spark: their records are read and landed by the process that decides them.

A landing is the one that Spark's tasks run (`storage/tasks/land.py`); only Spark's way of calling
it is missing. So a driver is a process of 0.1 GB that begins within a second, and a test can have
many of them. All that writes into the lake is the job's own.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from pipelines.epoch import recover
from pipelines.epoch import run as epochs
from pipelines.epoch.batch import Batch, rows_by_kind
from pipelines.kafka_log.plain_records import KAFKA
from pipelines.kafka_log.topics import Place
from storage.files.data_files import DataFile
from storage.lake.epochs import Range
from storage.rows import instant
from storage.tasks.land import Landing, read_landed
from tests.support import rig
from tests.support.rig import Rig

# What of Spark the settings of an epoch ask for: how many tasks run at once.
NO_SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
_READ_S = 30.0


def land_here() -> None:
    """Lets the epochs of this process land their records without Spark, from now on."""
    for module in (recover, epochs):
        module.land = _land  # type: ignore[attr-defined]
    for reader in (recover, rig):
        reader.kafka_records = _records  # type: ignore[attr-defined]


def _land(records: pa.Table, landing: Landing, tasks: int, _: object) -> Batch:
    files: defaultdict[str, list[DataFile]] = defaultdict(list)

    def parts() -> Iterator[pa.Table]:
        for batch in landing(records.to_batches()):
            for narrow, written in read_landed(batch):
                yield narrow
                for table, those in written.items():
                    files[table] += those

    batch = Batch(rows_by_kind(parts()), files)
    batch.tasks = tasks
    return batch


def _records(_: object, ranges: tuple[Range, ...], options: Mapping[str, str]) -> pa.Table:
    """Returns recorded ranges as Spark's source gives them. Input: the source's options."""
    wanted = {(r.topic, r.partition): r.to_offset for r in ranges if r.to_offset > r.from_offset}
    starts = [
        TopicPartition(r.topic, r.partition, r.from_offset)
        for r in ranges
        if (r.topic, r.partition) in wanted
    ]
    consumer = Consumer(
        {
            "bootstrap.servers": options["kafka.bootstrap.servers"],
            "group.id": "landed-here",
            "enable.auto.commit": False,
        }
    )
    rows: list[dict[str, Any]] = []
    try:
        consumer.assign(starts)
        while wanted:
            message: Any = consumer.poll(_READ_S)
            assert message is not None and message.error() is None, (message, wanted)
            place = message.topic(), message.partition()
            if message.offset() < wanted.get(place, 0):
                rows.append(_row(message))
            if message.offset() + 1 >= wanted.get(place, 0):
                wanted.pop(place, None)
    finally:
        consumer.close()
    return pa.Table.from_pylist(rows, schema=KAFKA)


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


class LightRig(Rig):
    """The epochs of one lake in a process without Spark, which has called `land_here`."""

    def __init__(self, *arguments: Any) -> None:
        self.owner = f"process-{os.getpid()}"
        super().__init__(*arguments)

    def run_to(self, at_ms: int, ends: Mapping[Place, int]) -> None:
        """Runs one epoch over what Kafka has up to some offsets."""
        self.now_ms = at_ms
        starts = self.epochs.start_offsets()
        ranges = tuple(Range(*place, starts[place], end, end) for place, end in ends.items())
        options = {"kafka.bootstrap.servers": self._settings.kafka.bootstrap_servers}
        self.epochs.run(_records(None, ranges, options), ends)
