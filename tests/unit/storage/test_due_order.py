"""What is due together stands together in `schedule`: few row groups are read for it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage.files.order import DUE_GROUP_ROWS
from storage.lake.lake import Lake
from storage.maintenance.merge import files_of, merge
from storage.schemas import SCHEDULE
from tests.support.schedule_rows import (
    COLUMNS,
    MINUTE_MS,
    PLACE,
    START_AT,
    frame,
    groups_read,
    land,
    spread,
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a place for the table `schedule`, without rows."""
    lake = Lake(str(tmp_path / "lake"))
    lake.create_table("schedule")
    return lake


def parts(lake: Lake) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(f"{lake.path}/schedule/{f.path}") for f in files_of(lake, "schedule")]


def check_due_order(part: pq.ParquetFile) -> None:
    rows = part.read(["deliver_at", *PLACE])
    last = pa.scalar(2**62, pa.int64())
    due = pc.fill_null(rows["deliver_at"].cast(pa.int64()), last).to_pylist()
    places = list(zip(due, *(rows[name].to_pylist() for name in PLACE), strict=True))
    assert places == sorted(places)
    groups = [part.metadata.row_group(n) for n in range(part.metadata.num_row_groups)]
    assert max(group.num_rows for group in groups) == DUE_GROUP_ROWS
    deliver_at = SCHEDULE.get_field_index("deliver_at")
    assert all(group.column(deliver_at).statistics.has_null_count for group in groups)


def test_a_landed_file_and_a_merged_one_are_in_due_order(lake: Lake) -> None:
    chance = random.Random(1)
    for epoch in (1, 2, 3):
        rows = spread(chance, 3_000, epoch * 3_000)
        for row in rows[::7]:
            row |= {"deliver_at": None, "delay_level": 2, "queue_id": 1}
        chance.shuffle(rows)
        land(lake, rows, epoch)
    landed = parts(lake)
    assert len(landed) == 3
    for part in landed:
        check_due_order(part)
    before = sorted(map(repr, lake.read("schedule").to_pylist()))
    assert merge(lake, "schedule", files_of(lake, "schedule"), 1 << 30)
    (merged,) = parts(lake)
    check_due_order(merged)
    assert merged.metadata.num_row_groups == -(-9_000 // DUE_GROUP_ROWS)
    assert sorted(map(repr, lake.read("schedule").to_pylist())) == before


def test_of_messages_scattered_over_all_others_few_groups_are_read(lake: Lake) -> None:
    chance = random.Random(2)
    for epoch in (1, 2, 3):
        rows = spread(chance, 12_000, epoch * 12_000)
        land(lake, rows, epoch)
    due = (START_AT + 700 * MINUTE_MS, START_AT + 705 * MINUTE_MS)
    rows = lake.read("schedule", COLUMNS)
    at = pc.divide(rows["deliver_at"].cast(pa.int64()), 1_000)
    named = rows.filter(pc.and_(pc.greater_equal(at, due[0]), pc.less_equal(at, due[1])))
    assert named.num_rows > 100
    assert max(groups_read(lake, named, due)) <= 2
    assert groups_read(lake, named, None) == 3 * [-(-12_000 // DUE_GROUP_ROWS)]


def test_of_many_delay_levels_few_groups_are_read(lake: Lake) -> None:
    rows = [
        {"queue_id": level - 1, "queue_offset": n, "stored_at": START_AT, "delay_level": level}
        for level in range(1, 11)
        for n in range(2_048)
    ]
    land(lake, rows, 1)
    named = frame([row for row in rows if row["queue_offset"] // 10 == row["queue_id"] * 20])
    assert named.num_rows == 100
    assert groups_read(lake, named, (START_AT, START_AT)) == [10]
    two = frame([rows[5], rows[2_048 * 9]])  # what stands between them is not read
    assert groups_read(lake, two, None) == [2]
    assert groups_read(lake, frame([rows[5]]), None) == [1]


def test_messages_of_a_level_are_read_at_once_from_a_group_that_has_others_too(lake: Lake) -> None:
    rows = spread(random.Random(6), 10)
    leveled = [{**row, "deliver_at": None, "delay_level": 1, "queue_id": 0} for row in rows]
    land(lake, rows + leveled, 1)
    due = (START_AT - 1_000, START_AT - 1)
    assert groups_read(lake, frame(leveled), due) == [1]
    assert groups_read(lake, frame(rows), due) == [1]  # the group may hold what has no time
