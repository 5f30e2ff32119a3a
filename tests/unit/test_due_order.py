"""What is due together stands together in `schedule`; whatever is named is found in any order."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from checker import touched
from checker.delay import admit_schedules
from checker.frames import DELAYED, NEW_SCHEDULES, PLACEMENTS, Parameters
from pipelines.apply import Applier
from pipelines.batch import Batch
from pipelines.deliver import Deliverer
from pipelines.sizes import Sizes
from storage import row_groups
from storage.deliver import Delivery
from storage.epochs import Plan, Range
from storage.errors import LakeError
from storage.file_order import DUE_GROUP_ROWS
from storage.lake import Lake
from storage.merge import files_of, merge
from storage.messages import read_messages, touched_ranges
from storage.places import coordinates
from storage.row_groups import Wanted, pruned
from storage.rows import to_rows
from storage.schemas import SCHEDULE
from storage.staged import StagedLake

START_AT = 1_767_225_600_000  # 2026-01-01
MINUTE_MS = 60_000
LEVELS_MS = (1_000, 5_000, 60_000, 600_000)
FAR_MS = 10_000_000
PARAMETERS = Parameters(delay_levels_ms=LEVELS_MS, deliver_at_max_ms=1_000_000)
PLACE = ["queue_id", "queue_offset"]
COLUMNS = [*PLACE, "epoch", "deliver_at", "body"]
NO_SPARK: Any = None
Row = dict[str, Any]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a place for the table `schedule`, without rows."""
    lake = Lake(str(tmp_path / "lake"))
    lake.create_table("schedule")
    return lake


def frame(rows: list[Row]) -> pa.Table:
    full = [{name: row.get(name) for name in NEW_SCHEDULES.names} for row in rows]
    return pa.Table.from_pylist(full, schema=NEW_SCHEDULES)


def land(lake: Lake, rows: list[Row], epoch: int) -> None:
    bodies = pa.array([f"{row['queue_id']}:{row['queue_offset']}".encode() for row in rows])
    landed = to_rows(frame(rows).append_column("body", bodies), SCHEDULE, epoch=epoch)
    lake.append("schedule", landed, epoch)


def spread(chance: random.Random, count: int, first: int = 0, queue_id: int = 4) -> list[Row]:
    """Return records for all minutes of a day, in no order."""
    minutes = [chance.randrange(1_440) for _ in range(count)]
    return [
        {"queue_id": queue_id, "queue_offset": first + n, "stored_at": START_AT,
         "deliver_at": START_AT + minute * MINUTE_MS}
        for n, minute in enumerate(minutes)
    ]  # fmt: skip


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


def groups_read(lake: Lake, named: pa.Table, due: tuple[int, int] | None) -> list[int]:
    """Count the row groups of each file that are read for what is named."""
    places = np.unique(coordinates(named).to_numpy())
    near = pruned(lake.dataset("schedule"), touched_ranges(named), Wanted(places, due), lake.opened)
    return sorted(len(file.row_groups) for file in near.get_fragments())


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


def mixed(chance: random.Random, at: int, places: dict[int, int]) -> Row:
    """Return a record as any producer may send it, in whatever partition."""
    queue_id = chance.randrange(3)
    places[queue_id] = places.get(queue_id, -1) + chance.choice((1, 1, 2))
    level = chance.choice((None, None, 0, 1, 2, 3, 4, 99))
    later = (None, -FAR_MS, -1, 0, 1_000, MINUTE_MS, 600_000, 999_999, 1_000_001, FAR_MS)
    after = chance.choice(later)
    return {"queue_id": queue_id, "queue_offset": places[queue_id], "stored_at": at,
            "delay_level": level, "deliver_at": None if after is None else at + after,
            "real_topic": "orders"}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_due_is_found_once(tmp_path: Path, seed: int) -> None:
    """Past and far times, levels above the last, both at once; resumed messages among them."""
    chance = random.Random(seed)
    lake: Lake = StagedLake(str(tmp_path / "lake")) if seed % 2 else Lake(str(tmp_path / "lake"))
    lake.create_table("schedule")
    places: dict[int, int] = {}
    waiting, gone = [], []
    at, found_twice_looked = START_AT, 0
    for epoch in range(1, 13):
        at += chance.choice((1_000, 5_000, 90_000, 400_000))
        since = min((row["deliver_at"] for row in waiting), default=None)
        due = [row for row in waiting if row["deliver_at"] <= at]
        named = due + chance.sample(gone, min(len(gone), chance.choice((0, 0, 2))))
        if named:
            found_twice_looked += check_found(lake, named, epoch, (since or at, at))
        waiting = [row for row in waiting if row["deliver_at"] > at]
        gone += due
        landed = [mixed(chance, at - chance.randrange(900), places) for _ in range(60)]
        land(lake, landed, epoch)
        if isinstance(lake, StagedLake) and epoch == 6:
            lake.flush()
        admitted = admit_schedules(frame(landed), at, PARAMETERS).to_pylist()
        waiting += [row for row in admitted if row["deliver_at"] > at]
    assert len(gone) > 100
    assert found_twice_looked > 0


def check_found(lake: Lake, named: list[Row], epoch: int, due: tuple[int, int]) -> bool:
    """Check what is read. Output: whether some of it is not where the due times say."""
    names = pa.Table.from_pylist([{name: row[name] for name in PLACE} for row in named])
    batches = list(read_messages(lake, "schedule", names, COLUMNS, epoch, due, lake.opened))
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = sorted((row["queue_id"], row["queue_offset"]) for row in rows)
    assert found == sorted((row["queue_id"], row["queue_offset"]) for row in named)
    assert all(row["body"] == f"{row['queue_id']}:{row['queue_offset']}".encode() for row in rows)
    said = [row["deliver_at"] for row in rows if row["deliver_at"] is not None]
    return any(not due[0] <= at.timestamp() * 1_000 <= due[1] for at in said)


def test_files_without_order_or_statistics_are_read_whole(lake: Lake) -> None:
    rows = spread(random.Random(3), 500)
    landed = to_rows(frame(rows), SCHEDULE, epoch=1)
    write_deltalake(lake.table_path("schedule"), landed, mode="append")
    (file,) = files_of(lake, "schedule")
    pq.write_table(
        lake.read("schedule"), f"{lake.path}/schedule/{file.path}",
        write_statistics=False, row_group_size=100,
    )  # fmt: skip
    named = frame(rows[100:105])
    due = (START_AT - FAR_MS, START_AT - 1)  # wrong for all
    assert groups_read(lake, named, due) == [5]
    found = pa.Table.from_batches(read_messages(lake, "schedule", named, COLUMNS, None, due))
    assert sorted(found["queue_offset"].to_pylist()) == [100, 101, 102, 103, 104]


def test_a_wrong_hint_costs_a_second_look_and_no_message(lake: Lake) -> None:
    rows = spread(random.Random(4), 5_000)
    land(lake, rows, 1)
    named, wrong = frame(rows[::50]), (START_AT - FAR_MS, START_AT - 1)
    assert groups_read(lake, named, wrong) == []
    found = pa.Table.from_batches(read_messages(lake, "schedule", named, COLUMNS, 2, wrong))
    assert sorted(found["queue_offset"].to_pylist()) == list(range(0, 5_000, 50))
    assert not list(read_messages(lake, "schedule", named, COLUMNS, 1, wrong))  # not yet landed


def test_nothing_named_opens_no_file(lake: Lake) -> None:
    land(lake, spread(random.Random(5), 10), 1)
    assert not list(read_messages(lake, "schedule", frame([]), COLUMNS))
    nothing = Wanted(np.array([], np.int64))
    near = pruned(lake.dataset("schedule"), pc.scalar(False), nothing, lake.opened)
    assert isinstance(near, ds.FileSystemDataset)
    assert near.files == []


def test_a_due_message_that_is_not_there_stops_the_epoch(lake: Lake) -> None:
    lake.create_table("topics/1")
    rows = spread(random.Random(7), 10)
    land(lake, [row for row in rows if row["queue_offset"] != 8], 1)
    ranges = (Range("schedules", 4, 10, 10, 10),)
    plan = Plan(2, START_AT, {}, {}, ranges, "cluster", {}, {}, {}, "test", 1)
    applier = Applier(lake, plan, Batch(), Deliverer(None), Sizes(1), START_AT)
    place = {"topic": "orders", "real_topic": "orders", "real_queue_id": 0, "real_queue_offset": 0,
             "source": "schedule", "queue_id": 4, "asked_queue_id": None,
             "reason": None}  # fmt: skip
    there, gone = (
        pa.Table.from_pylist([{**place, "queue_offset": offset}], schema=PLACEMENTS)
        for offset in (9, 8)
    )

    def delivery(placements: pa.Table) -> Delivery:
        tables = {"orders": "topics/1"}
        return Delivery(lake.place, 2, START_AT, placements, tables, (START_AT, START_AT))

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(LakeError, match="1 of them are not there"):
            applier._deliver(delivery(gone), [], pool)
        applier._deliver(delivery(there), [], pool)
    assert lake.read("topics/1", ["body"])["body"].to_pylist() == [b"4:9"]


def test_what_is_due_is_taken_out_of_the_state_without_a_copy() -> None:
    chance = random.Random(8)
    rows = [
        {"source": "schedule", "queue_id": 1, "queue_offset": n, "deliver_at": chance.randrange(99)}
        for n in range(touched.FEW_ROWS)
    ]
    full = [{name: row.get(name) for name in DELAYED.names} for row in rows]
    state = touched.join(
        DELAYED.empty_table(), pa.Table.from_pylist(full, schema=DELAYED), "deliver_at"
    )
    for at in (-1, 0, 50, 98):
        is_due = pc.less_equal(state["deliver_at"], at).to_numpy()
        due, left = touched.split(state, is_due)
        assert due.num_rows == sum(row["deliver_at"] <= at for row in rows)
        assert due.num_rows + left.num_rows == len(rows)
        assert not pc.any(pc.greater(due["deliver_at"], at)).as_py()
        buffers = {
            chunk.buffers()[1].address
            for table in (state, due, left)
            for chunk in table["queue_offset"].chunks
            if len(chunk)
        }
        assert len(buffers) == 1


def test_footers_are_read_once_and_the_oldest_are_forgotten(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "_KEPT_MAX", 3)
    for epoch in range(4):
        land(lake, spread(random.Random(epoch), 10, 10 * epoch), epoch)
    fragments = list(lake.dataset("schedule").get_fragments())
    first = [lake.opened.file(fragment) for fragment in fragments[:3]]
    assert lake.opened.file(fragments[0]) is first[0]
    lake.opened.file(fragments[3])
    assert lake.opened.file(fragments[0]) is first[0]
    assert lake.opened.file(fragments[1]) is not first[1]
