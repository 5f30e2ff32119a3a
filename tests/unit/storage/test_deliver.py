"""Deliveries: the same rows from the driver and from tasks, in one file or many."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pyarrow as pa
import pytest

from checker.frames import PLACEMENTS
from pipelines.epoch.delivery import MessageDelivery, _files, _split
from pipelines.epoch.task_sizing import (
    DELIVERY_ROWS_MAX,
    DRIVER_BYTES,
    DRIVER_ROWS,
    TASK_BYTES,
    TASK_ROWS,
    TaskSizing,
)
from storage.errors import LakeError
from storage.files.messages import offset_filter, read_messages
from storage.lake.lake import Lake
from storage.rows import instant
from storage.schemas import HALF
from storage.tasks import deliver as delivering
from storage.tasks.arrow_bytes import as_bytes
from storage.tasks.deliver import Delivery, LandedFiles
from storage.tasks.file_buffer import Files, merge_files
from storage.tasks.in_spark import DeliverTask, read_files

START_AT = 1_767_225_600_000  # 2026-01-01
TOPICS = ("orders", "parts", "odd")
TABLES = {topic: f"topics/{number}" for number, topic in enumerate(TOPICS, 1)}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with halves of three epochs and schedule records, in two queues."""
    lake = Lake(str(tmp_path / "lake"))
    for table in ("half", "schedule", *TABLES.values()):
        lake.create_table(table)
    chance = random.Random(3)
    for table in ("half", "schedule"):
        for epoch in range(1, 4):
            rows = [
                {
                    "queue_id": queue,
                    "queue_offset": 100 * epoch + n,
                    "epoch": epoch,
                    "stored_at": instant(START_AT),
                    "body": chance.randbytes(200),
                    "transaction_id": f"{table}-{queue}-{100 * epoch + n}",
                }
                for queue in range(2)
                for n in range(100)
            ]
            full = [{name: row.get(name) for name in HALF.names} for row in rows]
            lake.append(table, pa.Table.from_pylist(full, schema=HALF), epoch)
    return lake


def placements(every: int = 3) -> pa.Table:
    """Put every so many of the messages into topics, in an order that is not that of landing."""
    chance = random.Random(4)
    places = [
        (s, q, 100 * e + n)
        for s in ("half", "schedule")
        for q in range(2)
        for e in range(1, 4)
        for n in range(0, 100, every)
    ]
    chance.shuffle(places)
    rows = []
    ends: dict[tuple[str, int], int] = {}
    for source, queue_id, queue_offset in places:
        real = chance.choice(TOPICS), chance.randrange(2)
        ends[real] = ends.get(real, -1) + 1
        rows.append(
            {
                "topic": real[0],
                "real_topic": real[0],
                "real_queue_id": real[1],
                "real_queue_offset": ends[real],
                "source": source,
                "queue_id": queue_id,
                "queue_offset": queue_offset,
                "asked_queue_id": None,
                "reason": None,
            }
        )
    return pa.Table.from_pylist(rows, schema=PLACEMENTS)


def delivery(lake: Lake, rows: pa.Table) -> Delivery:
    return Delivery(lake.location, 4, START_AT, rows, TABLES)


def commit(lake: Lake, files: Files) -> dict[str, list[dict[str, object]]]:
    """Commit files. Output: the rows of each table, in the order of its queues."""
    found = {}
    for table in TABLES.values():
        lake.add_files(table, files.get(table, []), 4)
        order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
        found[table] = lake.read(table).sort_by(order).to_pylist()
    return found


def test_every_message_is_where_its_placement_says(lake: Lake) -> None:
    rows = placements()
    found = commit(lake, MessageDelivery(None).deliver(lake, delivery(lake, rows), 0))
    wanted = {(r["topic"], r["real_queue_id"], r["real_queue_offset"]): r for r in rows.to_pylist()}
    bodies = {
        (table, row["queue_id"], row["queue_offset"]): row["body"]
        for table in ("half", "schedule")
        for row in lake.read(table).to_pylist()
    }
    seen = 0
    for topic, table in TABLES.items():
        for row in found[table]:
            place = wanted[topic, row["queue_id"], row["queue_offset"]]
            landed = place["source"], place["queue_id"], place["queue_offset"]
            assert (row["source"], row["half_queue_id"], row["half_queue_offset"]) == landed
            assert row["body"] == bodies[landed]
            assert row["epoch"] == 4
            seen += 1
    assert seen == len(wanted)


def by_tasks(lake: Lake, whole: Delivery, parts: list[pa.Table]) -> Files:
    """Deliver as tasks do: each gets its own copy of the task, and a slice as bytes."""
    landed = LandedFiles(lake.location, _files(lake, whole.placements))
    sent = pickle.dumps(DeliverTask(whole, landed))
    slices = (pa.RecordBatch.from_pydict({"placements": [as_bytes(part)]}) for part in parts)
    return merge_files(
        read_files(batch)
        for part in slices
        for batch in pickle.loads(sent)([part])  # noqa: S301
    )


@pytest.mark.parametrize("tasks", [1, 2, 7])
@pytest.mark.parametrize("file_bytes", [1, 1 << 30])
def test_tasks_write_the_same_rows_as_the_driver(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, file_bytes: int
) -> None:
    whole = delivery(lake, placements())
    reference = commit(Lake(lake.path), MessageDelivery(None).deliver(lake, whole, 0))
    for table in TABLES.values():
        lake.handle(table).delete()
    monkeypatch.setattr(delivering, "FILE_BYTES", file_bytes)
    parts = list(_split(whole.placements, tasks))
    assert len(parts) == tasks
    written = by_tasks(lake, whole, parts)
    files = [file for table in written.values() for file in table]
    assert (len(files) > len(TABLES) * tasks) == (file_bytes == 1)
    for table, names in written.items():
        lake.handle(table).create_write_transaction(
            [file.add_action() for file in names], "append", lake.handle(table).schema()
        )
        order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
        assert lake.read(table).sort_by(order).to_pylist() == reference[table]


def test_tasks_open_only_files_that_may_hold_a_message(lake: Lake) -> None:
    rows = placements()
    of_epoch_2 = pa.Table.from_pylist(
        [r for r in rows.to_pylist() if r["source"] == "half" and r["queue_offset"] // 100 == 2],
        schema=PLACEMENTS,
    )
    assert {table: len(paths) for table, paths in _files(lake, of_epoch_2).items()} == {"half": 1}


def test_messages_of_ten_thousand_half_queues_end_no_process(lake: Lake) -> None:
    """A filter with a term for each queue overflowed Arrow's stack."""
    offset = lake.read("half", ["queue_offset"])["queue_offset"][0].as_py()
    keys = pa.table(
        {
            "queue_id": pa.array(range(10_000), pa.int32()),
            "queue_offset": pa.array([offset] * 10_000, pa.int64()),
        }
    )
    read = list(read_messages(lake, "half", keys, ["queue_id", "queue_offset"]))
    found = {row["queue_id"]: row["queue_offset"] for batch in read for row in batch.to_pylist()}
    assert found
    assert set(found.values()) == {offset}
    rows = lake.read("half", ["queue_id"], offset_filter(keys))
    assert set(rows["queue_id"].to_pylist()) == set(found)


@pytest.mark.parametrize("tasks", [0, 2])
def test_message_that_is_not_there_is_one_sentence(lake: Lake, tasks: int) -> None:
    rows = placements()
    gone = rows.slice(0, 1).to_pylist()[0] | {"source": "half", "queue_offset": 250_000}
    asked = delivery(lake, pa.concat_tables([rows, pa.Table.from_pylist([gone], PLACEMENTS)]))
    with pytest.raises(LakeError, match=r"but 1 could not be found there: run `txlake verify`"):
        if tasks:
            by_tasks(lake, asked, list(_split(asked.placements, tasks)))
        else:
            MessageDelivery(None).deliver(lake, asked, 0)


# parallelism, bytes of a message -> tasks that land and that deliver so many messages
SIZES = [
    (2, 256, DRIVER_ROWS, 0, 0),
    (2, 256, DRIVER_ROWS + 1, 2, 0),
    (2, 256, TASK_ROWS, 2, 0),
    (2, 256, 200_000, 2, 4),
    (8, 256, 200_000, 8, 8),
    (64, 256, 200_000, 200_000 // TASK_ROWS + 1, 200_000 // TASK_ROWS + 1),
    (64, 1 << 20, 100, 100 * (1 << 20) // TASK_BYTES + 1, 100 * (1 << 20) // TASK_BYTES + 1),
    (2, 2_048, DRIVER_BYTES // 2_048, 0, 0),
    (2, 2_048, DRIVER_BYTES // 2_048 + 1, 2, 2),
    (1, 2_048, 1_000_000, 1, 1_000_000 // DELIVERY_ROWS_MAX),
]


@pytest.mark.parametrize(("parallelism", "size", "count", "land", "deliver"), SIZES)
def test_tasks_follow_the_size_of_recent_messages(
    parallelism: int, size: int, count: int, land: int, deliver: int
) -> None:
    sizes = TaskSizing(parallelism)
    for _ in range(60):
        sizes.observe(1_000, 1_000 * size)
    assert (sizes.landing_tasks(count), sizes.delivery_tasks(count)) == (land, deliver)


@pytest.mark.parametrize(("where", "few", "many"), [("driver", 0, 0), ("executors", 1, 20)])
def test_where_bytes_are_moved_can_be_said(where: str, few: int, many: int) -> None:
    sizes = TaskSizing(2, where)
    assert (sizes.delivery_tasks(1), sizes.delivery_tasks(1_000_000)) == (few, many)
    is_driver = where == "driver"
    assert [sizes.landing_tasks(count) == 0 for count in (1, 1_000_000)] == [is_driver] * 2


def test_of_many_topics_each_is_written_by_one_task_and_of_few_rows_of_one_by_all() -> None:
    def rows(topics: int, of_each: int) -> pa.Table:
        named = [
            {
                "topic": f"t{number % topics}",
                "source": "half",
                "queue_id": 0,
                "queue_offset": number,
                "real_queue_id": 0,
                "real_queue_offset": number // topics,
            }
            for number in range(topics * of_each)
        ]
        return pa.Table.from_pylist(named, schema=PLACEMENTS)

    def topics_of(parts: list[pa.Table]) -> list[int]:
        return [len(part["topic"].unique()) for part in parts]

    many = list(_split(rows(40, 25), 4))
    assert topics_of(many) == [10, 10, 10, 10]
    few = list(_split(rows(2, 2_500), 4))
    assert topics_of(few) == [2, 2, 2, 2]
    for parts in (many, few):
        offsets = sorted(offset for part in parts for offset in part["queue_offset"].to_pylist())
        assert offsets == list(range(len(offsets)))
    assert [part["queue_offset"][0].as_py() for part in few] == [0, 1_250, 2_500, 3_750]
