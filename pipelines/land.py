"""Land an epoch's records: one Spark job, whose tasks decode and write; the driver gets the rest.

Source: PROTOCOL.md "What can be read"; ARCHITECTURE.md "One epoch", 1.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.arrow_batches import arrow_batches
from pipelines.batch import Batch
from storage.data_files import DataFile
from storage.epochs import Plan, Range
from storage.kafka_arrow import KAFKA_COLUMNS, RECORDS
from storage.kafka_rows import HALF, SCHEDULE
from storage.lake import Lake
from storage.land import HEAVY, LANDED_IN_SPARK, Landing, read_landed
from storage.rows import to_rows
from storage.tasks import LandTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def land(records: DataFrame, landing: Landing, tasks: int) -> Batch:
    """Land Kafka records by one Spark job of so many tasks, at most one a Kafka partition.

    Input: what Spark's Kafka source gives. Output: what decides of them, and the files to commit.
    """
    kafka = records.where("topic IS NOT NULL").select(*KAFKA_COLUMNS).coalesce(tasks)
    landed = kafka.mapInArrow(LandTask(landing), LANDED_IN_SPARK)
    ended = 0
    files: defaultdict[str, list[DataFile]] = defaultdict(list)

    def parts() -> Iterator[pa.Table]:
        nonlocal ended
        for batch in arrow_batches(landed):
            for narrow, written in read_landed(batch):
                ended += narrow.num_rows == 0  # the last that a task hands back
                yield narrow
                for table, file in written.items():
                    files[table].append(file)

    with described(records.sparkSession, landing.epoch, "land", tasks):
        batch = Batch.of(parts(), files)
    batch.tasks = ended
    pa.default_memory_pool().release_unused()  # while it was put together there were two of it
    return batch


@contextmanager
def described(spark: SparkSession, epoch: int, step: str, tasks: int) -> Iterator[None]:
    """Let Spark's pages show what the job of a block is for."""
    count = "1 task" if tasks == 1 else f"{tasks} tasks"
    spark.sparkContext.setJobDescription(f"epoch {epoch}: {step}, {count}")
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def read_again(
    spark: SparkSession,
    lake: Lake,
    plan: Plan,
    held: Sequence[str],
    landing: Landing,
    tasks: int,
    kafka_options: Mapping[str, str],
) -> Batch:
    """Read a plan's records again.

    Input: the kinds whose table holds the epoch already; those come from there, all else is landed
    from Kafka.
    """
    missing = {kind: topic for kind, topic in landing.limits.topics.items() if kind not in held}
    ranges = tuple(
        r for r in plan.ranges if r.topic in missing.values() and r.to_offset > r.from_offset
    )
    batch = Batch()
    if ranges:
        batch = land(kafka_records(spark, ranges, kafka_options), landing, tasks)
    for kind in held:
        batch.add_table(_landed(lake, kind, plan.epoch), kind)
    return batch


def _landed(lake: Lake, kind: str, epoch: int) -> pa.Table:
    """Read what decides of the records that a table holds of an epoch. Output: RECORDS."""
    heavy = HEAVY if kind in (HALF, SCHEDULE) else ()
    columns = [name for name in lake.schema(kind).names if name not in heavy]
    rows = lake.read(kind, columns, pc.field("epoch") == epoch)
    return to_rows(rows, RECORDS, kind=kind)


def kafka_records(
    spark: SparkSession, ranges: tuple[Range, ...], options: Mapping[str, str]
) -> DataFrame:
    """Read recorded ranges again from Kafka, as one batch; partitions made since are left out."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for r in ranges:
        starts.setdefault(r.topic, {})[str(r.partition)] = r.from_offset
        ends.setdefault(r.topic, {})[str(r.partition)] = r.to_offset
    partitions = {topic: [int(n) for n in offsets] for topic, offsets in starts.items()}
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("includeHeaders", "true")
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
