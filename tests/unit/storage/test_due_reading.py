"""Whatever is named is found, in any order, also where due times say otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from checker.frames import PLACEMENTS, Parameters
from checker.rules.delay import admit_schedules
from pipelines.epoch.delivery import MessageDelivery
from storage.errors import LakeError
from storage.files.messages import read_messages
from storage.files.row_groups import KeyFilter, pruned
from storage.lake.buffered import BufferedLake
from storage.lake.lake import Lake
from storage.maintenance.merge import files_of
from storage.rows import to_rows
from storage.schemas import SCHEDULE
from storage.tasks.deliver import Delivery
from tests.support.schedule_rows import (
    COLUMNS,
    FAR_MS,
    MINUTE_MS,
    PLACE,
    START_AT,
    Row,
    frame,
    groups_read,
    land,
    spread,
)

LEVELS_MS = (1_000, 5_000, 60_000, 600_000)
PARAMETERS = Parameters(delay_levels_ms=LEVELS_MS, deliver_at_max_ms=1_000_000)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a place for the table `schedule`, without rows."""
    lake = Lake(str(tmp_path / "lake"))
    lake.create_table("schedule")
    return lake


def mixed(chance: random.Random, at: int, places: dict[int, int]) -> Row:
    """Return a record as any producer may send it, in whatever partition."""
    queue_id = chance.randrange(3)
    places[queue_id] = places.get(queue_id, -1) + chance.choice((1, 1, 2))
    level = chance.choice((None, None, 0, 1, 2, 3, 4, 99))
    later = (None, -FAR_MS, -1, 0, 1_000, MINUTE_MS, 600_000, 999_999, 1_000_001, FAR_MS)
    after = chance.choice(later)
    return {
        "queue_id": queue_id,
        "queue_offset": places[queue_id],
        "stored_at": at,
        "delay_level": level,
        "deliver_at": None if after is None else at + after,
        "real_topic": "orders",
    }


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_due_is_found_once(tmp_path: Path, seed: int) -> None:
    """Past and far times, levels above the last, both at once; resumed messages among them."""
    chance = random.Random(seed)
    lake: Lake = BufferedLake(str(tmp_path / "lake")) if seed % 2 else Lake(str(tmp_path / "lake"))
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
        if isinstance(lake, BufferedLake) and epoch == 6:
            lake.begin_flush()
            lake.wait()
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
        lake.read("schedule"),
        f"{lake.path}/schedule/{file.path}",
        write_statistics=False,
        row_group_size=100,
    )
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
    nothing = KeyFilter(np.array([], np.int64))
    near = pruned(lake.dataset("schedule"), pc.scalar(False), nothing, lake.opened)
    assert isinstance(near, ds.FileSystemDataset)
    assert near.files == []


def test_a_due_message_that_is_not_there_stops_the_epoch(lake: Lake) -> None:
    lake.create_table("topics/1")
    rows = spread(random.Random(7), 10)
    land(lake, [row for row in rows if row["queue_offset"] != 8], 1)
    place = {
        "topic": "orders",
        "real_topic": "orders",
        "real_queue_id": 0,
        "real_queue_offset": 0,
        "source": "schedule",
        "queue_id": 4,
        "asked_queue_id": None,
        "reason": None,
    }
    there, gone = (
        pa.Table.from_pylist([{**place, "queue_offset": offset}], schema=PLACEMENTS)
        for offset in (9, 8)
    )

    def delivery(placements: pa.Table) -> Delivery:
        tables = {"orders": "topics/1"}
        return Delivery(lake.location, 2, START_AT, placements, tables, (START_AT, START_AT))

    with pytest.raises(LakeError, match="but 1 could not be found there"):
        MessageDelivery(None).deliver(lake, delivery(gone), 0)
    files = MessageDelivery(None).deliver(lake, delivery(there), 0)
    lake.add_files("topics/1", files["topics/1"], 2)
    assert lake.read("topics/1", ["body"])["body"].to_pylist() == [b"4:9"]


def test_footers_are_read_once_and_the_oldest_are_forgotten(lake: Lake) -> None:
    for epoch in range(70):  # more files than footers are kept
        land(lake, spread(random.Random(epoch), 10, 10 * epoch), epoch)
    for fragment in lake.dataset("schedule").get_fragments():
        lake.opened.file(fragment)
    oldest, *_, newest = lake.dataset("schedule").get_fragments()
    for path in Path(lake.table_path("schedule")).glob("*.parquet"):
        path.unlink()
    lake.opened.file(newest)
    with pytest.raises(FileNotFoundError):
        lake.opened.file(oldest)
