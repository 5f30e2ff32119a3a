"""What Spark writes can be read in part, as what the driver writes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pipelines.apply import Applier
from pipelines.gather import Batch
from storage.lake import Lake
from storage.merge import files_of
from storage.rows import instant
from storage.schemas import SCHEDULE

START_AT = 1_767_225_600_000  # 2026-01-01
NO_PLAN: Any = type("NoPlan", (), {"epoch": 1})()


def test_schedule_is_in_due_order_and_in_groups_with_statistics(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.create_table("schedule")
    chance = random.Random(1)
    rows = [
        {"queue_id": 4, "queue_offset": offset, "stored_at": instant(START_AT), "epoch": 1,
         "deliver_at": instant(START_AT + chance.randrange(1_000_000)),
         "body": chance.randbytes(10_000)}
        for offset in range(1_000)
    ]  # fmt: skip
    full = [{name: row.get(name) for name in SCHEDULE.names} for row in rows]
    frame = spark.createDataFrame(pa.Table.from_pylist(full, schema=SCHEDULE))
    applier = Applier(lake, NO_PLAN, Batch(spark, {}), {}, None)
    applier._write("schedule", frame, len(rows))
    (file,) = files_of(lake, "schedule")
    part = pq.ParquetFile(f"{lake.path}/schedule/{file.path}")
    due = part.read(["deliver_at"])["deliver_at"].to_pylist()
    assert due == sorted(row["deliver_at"] for row in rows)
    at = SCHEDULE.get_field_index("deliver_at")
    groups = [part.metadata.row_group(n) for n in range(part.metadata.num_row_groups)]
    assert len(groups) >= 2
    assert all(group.column(at).statistics.has_min_max for group in groups)
    assert groups[0].column(at).statistics.max <= groups[-1].column(at).statistics.min
