"""Epochs without Spark: their records are read and landed by the process that decides them.

A landing is the one that Spark's tasks run (`storage/tasks/land.py`); only Spark's way of calling
it is missing. So a driver is a process of 0.1 GB that begins within a second, and a test can have
many of them. All that writes into the lake is the job's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from pipelines.epoch.batch import Batch, rows_by_kind
from pipelines.epoch.land import land_here
from pipelines.kafka_client.connection import Partition
from storage.files.data_files import DataFile
from storage.tasks.kafka_reader import KafkaSource
from storage.tasks.land import Landing, read_landed


@dataclass(frozen=True)
class LocalLander:
    """A lander that is this process: one task."""

    parallelism: int = 1
    spark: None = None

    def land(
        self,
        ranges: Mapping[Partition, range],
        landing: Landing,
        source: KafkaSource,
        tasks: int,
    ) -> Batch:
        """Lands in this process, whatever `tasks` says."""
        return replace(land_here(ranges, landing, source), tasks=tasks)

    def warm_up(self, landing: Landing, tasks: int) -> None:
        """Does nothing: there is nothing to start."""


def landed_here(records: Iterable[pa.RecordBatch], landing: Landing, tasks: int) -> Batch:
    """Lands records that were read already. Input: KAFKA."""
    files: defaultdict[str, list[DataFile]] = defaultdict(list)

    def parts() -> Iterator[pa.Table]:
        for batch in landing(records):
            for rows, written in read_landed(batch):
                yield rows
                for table, new in written.items():
                    files[table] += new

    return Batch(rows_by_kind(parts()), files, tasks)
