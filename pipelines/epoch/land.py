"""An epoch's records landed by one Spark job: tasks decode and write, the driver gets narrow rows.

What an epoch needs of Spark stands in `Lander`; tests have one that needs no JVM.

Source: docs/protocol/wire.md "What can be read"; ARCHITECTURE.md "One epoch", 1.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from pipelines.epoch.arrow_batches import arrow_batches
from pipelines.epoch.batch import Batch, rows_by_kind
from pipelines.epoch.memory import LARGE_RECORDS, release_memory
from pipelines.errors import LargeEpochError
from pipelines.jvm.spark_private import jvm_of
from pipelines.kafka_client.options import offsets_json
from storage.files.data_files import DataFile
from storage.lake.epochs import Range
from storage.tasks.in_spark import LandTask
from storage.tasks.land import LANDED_IN_SPARK, TOO_MUCH, Landing, read_landed
from storage.wire.decode import KAFKA_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger("txlake.kafka")

Plainly = Callable[[], Iterator[pa.RecordBatch]]
# How Java says that a record's time in ms is too large to be counted in us.
_NO_TIME = "long overflow"
_KAFKA_TYPES = [
    f"CAST(NULL AS {kind}) AS {name}"
    for name, kind in zip(
        KAFKA_COLUMNS,
        ("string", "int", "long", "timestamp", "binary", "binary",
         "array<struct<key: string, value: binary>>"),
        strict=True,
    )
]  # fmt: skip


class Lander(Protocol):
    """Reads Kafka's records, and lands them: tasks of Spark, or one process without Spark.

    `parallelism`: how many tasks run at once. `spark`: whose tasks deliver many messages; None:
    the driver delivers.
    """

    @property
    def parallelism(self) -> int: ...

    @property
    def spark(self) -> SparkSession | None: ...

    def read(self, ranges: tuple[Range, ...], options: Mapping[str, str]) -> Any:
        """Returns recorded ranges, read again from Kafka. Input: options of Spark's source."""

    def land(self, records: Any, landing: Landing, tasks: int, fallback_reader: Plainly) -> Batch:
        """Lands records, as `read` or the stream gives them. Input: as `land`."""

    def warm_up(self, landing: Landing, tasks: int) -> None:
        """Prepares for a landing: the first one of a process takes longer."""


@dataclass(frozen=True)
class SparkLander:
    """The tasks of a Spark session."""

    spark: SparkSession

    @property
    def parallelism(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def read(self, ranges: tuple[Range, ...], options: Mapping[str, str]) -> DataFrame:
        return kafka_records(self.spark, ranges, options)

    def land(
        self, records: DataFrame, landing: Landing, tasks: int, fallback_reader: Plainly
    ) -> Batch:
        return land(records, landing, tasks, fallback_reader)

    def warm_up(self, landing: Landing, tasks: int) -> None:
        warm_up(self.spark, landing, tasks)


def land(
    records: DataFrame, landing: Landing, tasks: int, fallback_reader: Plainly | None = None
) -> Batch:
    """Lands Kafka records by one Spark job of so many tasks, at most one a Kafka partition.

    Input: rows of Spark's Kafka source; `fallback_reader` reads them without Spark, if Spark
    cannot. Output: their narrow rows, and the files to commit.
    """
    kafka = records.where("topic IS NOT NULL").select(*KAFKA_COLUMNS).coalesce(tasks)
    landed = kafka.mapInArrow(LandTask(landing), LANDED_IN_SPARK)
    ended = 0
    files: defaultdict[str, list[DataFile]] = defaultdict(list)

    def parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        nonlocal ended
        for batch in batches:
            for narrow, written in read_landed(batch):
                ended += narrow.num_rows == 0  # each task hands back an empty one last
                yield narrow
                for table, those in written.items():
                    files[table] += those

    with job_description(records.sparkSession, landing.epoch, "land", tasks):
        try:
            batch = Batch(rows_by_kind(parts(arrow_batches(landed))), files)
        except Exception as error:
            if TOO_MUCH in str(error):
                raise LargeEpochError(
                    f"epoch {landing.epoch}: a task would hand back texts of more than "
                    f"{landing.narrow_bytes_max} bytes to the driver; give the JVM more memory, or "
                    "lower max_offsets_per_trigger"
                ) from None
            if fallback_reader is None or _NO_TIME not in str(error):
                raise
            log.warning(
                "epoch %d: a record has a time that Spark cannot hold; the epoch is read without "
                "Spark, and the record is a row with its reason, bad_timestamp", landing.epoch,
            )  # fmt: skip
            files.clear()
            ended = 0
            batch = Batch(rows_by_kind(parts(landing(fallback_reader()))), files)
    batch.tasks = ended
    release_memory(batch.records)  # the parts took as much memory again
    if batch.records > LARGE_RECORDS:
        # Gives back what tasks handed over: 0.2 GB after two million records.
        jvm_of(records.sparkSession).System.gc()
    return batch


def warm_up(spark: SparkSession, landing: Landing, tasks: int) -> None:
    """Lands an empty frame: Python workers start, and the JVM loads the classes of a landing.

    Without it the first epoch takes about 1.5 s longer. Errors are ignored: the first landing meets
    them, too.
    """
    nothing = spark.range(0, tasks, 1, tasks).where("id < 0").selectExpr(*_KAFKA_TYPES)
    with suppress(Exception):
        land(nothing, landing, tasks)


@contextmanager
def job_description(spark: SparkSession, epoch: int, step: str, tasks: int) -> Iterator[None]:
    """Shows in Spark's pages what the jobs of a block are for."""
    count = "1 task" if tasks == 1 else f"{tasks} tasks"
    spark.sparkContext.setJobDescription(f"epoch {epoch}: {step}, {count}")
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def kafka_records(
    spark: SparkSession, ranges: tuple[Range, ...], options: Mapping[str, str]
) -> DataFrame:
    """Returns recorded ranges, read again from Kafka as one batch.

    Partitions that were made since are left out.
    """
    starts = offsets_json({r.place: r.from_offset for r in ranges})
    partitions = {topic: [int(n) for n in offsets] for topic, offsets in starts.items()}
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("includeHeaders", "true")
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(offsets_json({r.place: r.to_offset for r in ranges})))
        .load()
    )
