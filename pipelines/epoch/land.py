"""An epoch's records landed by one Spark job: tasks read, decode and write; narrow rows come back.

`Lander` is all that an epoch needs of Spark; tests have one that needs no JVM.

Source: docs/protocol/wire.md "What can be read"; ARCHITECTURE.md "One epoch", 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pipelines.epoch.arrow_batches import arrow_batches
from pipelines.epoch.batch import Batch, rows_by_kind
from pipelines.epoch.memory import LARGE_RECORDS, release_memory
from pipelines.errors import LargeEpochError
from pipelines.jvm.spark_private import jvm_of
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.record_reader import unread_error
from storage.files.data_files import DataFile
from storage.tasks.in_spark import LandTask
from storage.tasks.kafka_reader import (
    KafkaSource,
    RecordRange,
    UnreadRecordsError,
    read_records,
)
from storage.tasks.land import LANDED_DDL, TOO_MUCH, Landing, read_landed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Shares = tuple[tuple[RecordRange, ...], ...]


class Lander(Protocol):
    """Lander of Kafka's records: tasks of Spark, or one process without Spark.

    `parallelism`: the number of tasks that run at once. `spark`: the session whose tasks deliver
    many messages; None: the driver delivers.
    """

    @property
    def parallelism(self) -> int: ...

    @property
    def spark(self) -> SparkSession | None: ...

    def land(
        self,
        ranges: Mapping[Partition, range],
        landing: Landing,
        source: KafkaSource,
        tasks: int,
    ) -> Batch:
        """Reads offsets from Kafka, and lands them. Input: as `land`; 0 tasks: in the driver.

        Errors: as `land`.
        """

    def warm_up(self, landing: Landing, tasks: int) -> None:
        """Prepares for a landing: the first one of a process takes longer."""


@dataclass(frozen=True)
class SparkLander:
    """The lander of a Spark session."""

    spark: SparkSession

    @property
    def parallelism(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def land(
        self,
        ranges: Mapping[Partition, range],
        landing: Landing,
        source: KafkaSource,
        tasks: int,
    ) -> Batch:
        if tasks == 0:
            return land_here(ranges, landing, source)
        return land(self.spark, ranges, landing, source, tasks)

    def warm_up(self, landing: Landing, tasks: int) -> None:
        warm_up(self.spark, landing, tasks)


@dataclass
class _TaskResults:
    """The results that tasks have handed back so far.

    `files`: the files that they wrote, by table. `ended_tasks`: the number of tasks that ended.
    """

    files: defaultdict[str, list[DataFile]] = field(default_factory=lambda: defaultdict(list))
    ended_tasks: int = 0

    def narrow_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Returns the narrow rows of the tasks' results, and collects the files."""
        for batch in batches:
            for narrow, files_by_table in read_landed(batch):
                if narrow.num_rows == 0:  # each task hands back an empty one last
                    self.ended_tasks += 1
                yield narrow
                for table, files in files_by_table.items():
                    self.files[table] += files

    def read(self, batches: Iterable[pa.RecordBatch]) -> Batch:
        """Returns the batch that tasks have landed, when the last of them has ended."""
        by_kind = rows_by_kind(self.narrow_rows(batches))
        return Batch(by_kind, self.files, self.ended_tasks)


def land(
    spark: SparkSession,
    ranges: Mapping[Partition, range],
    landing: Landing,
    source: KafkaSource,
    tasks: int,
) -> Batch:
    """Lands offsets of Kafka by one Spark job of `tasks` tasks, each of which reads its share.

    Output: the records' narrow rows, and the files to commit.
    Errors: LargeEpochError if the driver cannot take the narrow rows of a task; LostInputError;
    KafkaAwayError.
    """
    task = LandTask(landing, source, shares_of(ranges, tasks))
    landed = spark.range(0, tasks, 1, tasks).mapInArrow(task, LANDED_DDL)

    with job_description(spark, landing.epoch, "land", tasks):
        try:
            batch = _TaskResults().read(arrow_batches(landed))
        except Exception as error:
            _raise_known(error, landing)
            raise

    release_memory(batch.records)  # the parts took as much memory again
    if batch.records > LARGE_RECORDS:
        # Gives back what tasks handed over: 0.2 GB after two million records.
        jvm_of(spark).System.gc()
    return batch


def land_here(ranges: Mapping[Partition, range], landing: Landing, source: KafkaSource) -> Batch:
    """Lands offsets of Kafka in this process. Output and errors: as `land`."""
    records = read_records(source, [RecordRange(*p, r.start, r.stop) for p, r in ranges.items()])
    try:
        batch = _TaskResults().read(landing(records))
    except (UnreadRecordsError, ValueError) as error:
        _raise_known(error, landing)
        raise
    return replace(batch, tasks=0)


def _raise_known(error: Exception, landing: Landing) -> None:
    """Raises an error of ours that a task's stands for: of a task's only the text comes."""
    if TOO_MUCH in str(error):
        raise LargeEpochError(
            f"epoch {landing.epoch}: a task would hand back texts of more than "
            f"{landing.driver_bytes_max} bytes to the driver; give the JVM more memory, or "
            "lower max_offsets_per_trigger"
        ) from None

    unread = unread_error(str(error))
    if unread is not None:
        raise unread from error


def shares_of(ranges: Mapping[Partition, range], tasks: int) -> Shares:
    """Returns the offsets that each task reads: shares of equal length, in Kafka's order.

    A share is cut within a partition where that is due, so most partitions are in one share whole.
    """
    total = sum(map(len, ranges.values()))
    bounds = [total * number // tasks for number in range(tasks + 1)]
    shares: list[list[RecordRange]] = [[] for _ in range(tasks)]
    passed = 0

    for (topic, partition), offsets in sorted(ranges.items()):
        for share, (first, end) in zip(shares, pairwise(bounds), strict=True):
            start = max(offsets.start, offsets.start + first - passed)
            stop = min(offsets.stop, offsets.start + end - passed)
            if start < stop:
                share.append(RecordRange(topic, partition, start, stop))
        passed += len(offsets)

    return tuple(map(tuple, shares))


def warm_up(spark: SparkSession, landing: Landing, tasks: int) -> None:
    """Lands nothing: Python workers start, and the JVM loads the classes of a landing.

    Without it the first epoch takes about 1.5 s longer. Errors are ignored: the first landing meets
    them, too.
    """
    with suppress(Exception):
        land(spark, {}, landing, KafkaSource(""), tasks)


@contextmanager
def job_description(spark: SparkSession, epoch: int, step: str, tasks: int) -> Iterator[None]:
    """Gives the Spark jobs of a block a description, which Spark's pages show."""
    count = "1 task" if tasks == 1 else f"{tasks} tasks"
    spark.sparkContext.setJobDescription(f"epoch {epoch}: {step}, {count}")
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
