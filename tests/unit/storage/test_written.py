"""Files that are written in parts: row groups, statistics, memory, and files that fail."""

from __future__ import annotations

import gc
import itertools
import json
import random
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from storage.files import data_files
from storage.files.data_files import GROUP_BYTES, FileWriter, write_file
from storage.files.location import LakeLocation
from storage.rows import to_rows
from storage.schemas import HALF, OUTCOMES
from storage.tasks.file_buffer import FileBuffer
from storage.tasks.land import _of_kind
from storage.wire import record_kinds


@pytest.fixture
def location(tmp_path: Path) -> LakeLocation:
    for table in ("half", "schedule", "outcomes", "topics/1"):
        (tmp_path / table).mkdir(parents=True)
    return LakeLocation(str(tmp_path))


def halves(first: int, count: int, body_bytes: int = 10, queue_id: int = 0) -> pa.Table:
    chance = random.Random(first)
    frame = pa.table(
        {
            "queue_id": pa.array([queue_id] * count, pa.int32()),
            "queue_offset": pa.array(range(first, first + count), pa.int64()),
            "transaction_id": [f"tx-{number}" for number in range(first, first + count)],
            "body": [chance.randbytes(body_bytes) for _ in range(count)],
        }
    )
    return to_rows(frame, HALF, epoch=1)


def groups(location: LakeLocation, table: str, path: str) -> list[int]:
    metadata = pq.ParquetFile(f"{location.path}/{table}/{path}").metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def test_memory_follows_a_row_group_and_not_a_file(location: LakeLocation) -> None:
    waiting, pool, rows = FileBuffer(location, 1), pa.default_memory_pool(), 512
    before, most = pool.bytes_allocated(), 0
    for number in range(24):
        waiting.add("half", halves(number * rows, rows, body_bytes=2_048))
        most = max(most, pool.bytes_allocated() - before)
    (file,) = waiting.write()["half"]
    assert file.row_bytes > 5 * GROUP_BYTES
    assert most < 2 * GROUP_BYTES
    assert sum(groups(location, "half", file.path)) == file.rows == 24 * rows
    read = pq.read_table(f"{location.path}/half/{file.path}")
    assert read["queue_offset"].to_pylist() == list(range(24 * rows))


def test_each_table_has_a_file_and_new_ones_after_they_were_written(location: LakeLocation) -> None:
    waiting = FileBuffer(location, 1)
    for _ in range(2):
        waiting.add("half", halves(0, 3))
        waiting.add("schedule", halves(0, 2))
        waiting.add("half", halves(3, 4))
        written = waiting.write()
        assert {table: [file.rows for file in files] for table, files in written.items()} == {
            "half": [7],
            "schedule": [2],
        }
    assert len(list(Path(location.path).glob("half/*.parquet"))) == 2
    assert waiting.write() == {}


def test_an_epoch_may_have_more_topics_than_the_process_may_have_files(tmp_path: Path) -> None:
    tables = [f"topics/{number}" for number in range(1, 201)]
    for table in tables:
        (tmp_path / table).mkdir(parents=True)

    waiting = FileBuffer(LakeLocation(str(tmp_path)), 1)
    for table in tables:
        waiting.add(table, halves(0, 1))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 50, limits[1]))
    try:
        written = waiting.write()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert list(written) == tables


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, [1]), (4_096, [4_096]), (4_097, [2_049, 2_048]), (9_000, [3_000] * 3)],
)
def test_row_groups_of_a_part_are_equally_large(
    location: LakeLocation, rows: int, expected: list[int]
) -> None:
    write_file(location, "half", "one.parquet", halves(0, rows))
    assert groups(location, "half", "one.parquet") == expected


def test_row_group_of_large_bodies_has_few_rows(location: LakeLocation) -> None:
    write_file(location, "half", "one.parquet", halves(0, 8, body_bytes=1 << 20))
    assert max(groups(location, "half", "one.parquet")) <= 4


def codecs(location: LakeLocation, name: str) -> set[str]:
    """Return how the columns of a file of `half` are compressed."""
    columns = pq.ParquetFile(f"{location.path}/half/{name}").metadata.row_group(0)
    return {columns.column(number).compression for number in range(columns.num_columns)}


def test_new_files_are_compressed_quickly_and_merged_ones_well(location: LakeLocation) -> None:
    rows = halves(0, 2_000)
    digits = [
        b'{"reference":"%s"}' % random.Random(n).randbytes(40).hex().encode() for n in range(2_000)
    ]
    rows = rows.set_column(rows.schema.get_field_index("body"), rows.schema.field("body"), [digits])
    new = write_file(location, "half", "new.parquet", rows)
    merged = write_file(location, "half", "merged.parquet", rows, zstd_level=1)
    assert codecs(location, "new.parquet") == {"ZSTD"}
    body_bytes = sum(map(len, digits))
    assert merged.size_bytes < 0.75 * body_bytes < new.size_bytes < body_bytes


def test_a_file_of_few_rows_has_no_context_of_zstd_for_each_column(location: LakeLocation) -> None:
    few = halves(0, 100)
    write_file(location, "half", "new.parquet", few)
    write_file(location, "half", "merged.parquet", few, zstd_level=1)
    assert codecs(location, "new.parquet") == codecs(location, "merged.parquet") == {"SNAPPY"}

    write_file(location, "half", "below.parquet", halves(0, 1, body_bytes=255 * 1024))
    write_file(location, "half", "above.parquet", halves(0, 1, body_bytes=256 * 1024))
    assert codecs(location, "below.parquet") == {"SNAPPY"}
    assert codecs(location, "above.parquet") == {"ZSTD"}

    # A task's file goes by its first part, and that is a whole row group if more comes.
    files = FileBuffer(location, 1)
    files.add("half", halves(0, 8, body_bytes=1 << 20))
    files.add("half", few)
    (file,) = files.write()["half"]
    assert codecs(location, file.path) == {"ZSTD"}


def test_statistics_of_parts_are_those_of_all_rows_together(location: LakeLocation) -> None:
    chance = random.Random(1)
    frame = pa.table(
        {
            "queue_id": pa.array([chance.choice((None, 1, 7)) for _ in range(60)], pa.int32()),
            "queue_offset": pa.array(range(60), pa.int64()),
            "transaction_id": [chance.choice((None, f"tx-{number}")) for number in range(60)],
            "outcome": ["COMMITTED"] * 59 + ["L" * 200],
        }
    )
    rows = to_rows(frame, OUTCOMES, epoch=3)
    whole = write_file(location, "outcomes", "whole.parquet", rows)
    in_parts = FileWriter(location, "outcomes", "parts.parquet", rows)
    for start in range(0, 60, 7):
        in_parts.write(rows.slice(start, 7))
    file = in_parts.close()
    assert json.loads(file.stats) == json.loads(whole.stats)
    assert (file.rows, file.size_bytes) == (
        60,
        Path(f"{location.path}/outcomes/parts.parquet").stat().st_size,
    )
    told = json.loads(file.stats)
    assert told["nullCount"]["queue_id"] == rows["queue_id"].null_count > 0
    assert (told["minValues"]["queue_id"], told["maxValues"]["queue_offset"]) == (1, 59)
    assert "outcome" not in told["minValues"], "a text of 200 characters is none for the log"


def test_file_that_cannot_be_written_fails_once(
    location: LakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    gc.collect()  # what tests before it have left
    later: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", later.append)
    full = pa_fs.LocalFileSystem().open_output_stream("/dev/full")
    monkeypatch.setattr(
        LakeLocation,
        "filesystem",
        lambda *_: type("Full", (), {"open_output_stream": lambda *_: full})(),
    )
    with pytest.raises(OSError, match="No space left"):
        data_files.write_file(location, "half", "one.parquet", halves(0, 100))
    gc.collect()
    assert later == []


@pytest.mark.parametrize("runs", [0, 1, 3, 200])
def test_records_of_a_kind_are_found_in_their_order(runs: int) -> None:
    chance = random.Random(runs)
    order = itertools.cycle((record_kinds.HALF, record_kinds.OP, None))
    found = [kind for kind in itertools.islice(order, runs) for _ in range(chance.randrange(1, 4))]
    rows = pa.table({"kind": pa.array(found, pa.string()), "number": pa.array(range(len(found)))})
    for kind in (record_kinds.HALF, record_kinds.OP, record_kinds.SCHEDULE):
        numbers = [number for number, one in enumerate(found) if one == kind]
        assert _of_kind(rows, kind)["number"].to_pylist() == numbers
