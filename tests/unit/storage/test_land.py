"""What one task lands: files that can be read in part, and narrow rows; in bounded memory."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import LakeError
from storage.files.data_files import DataFile
from storage.lake.lake import Lake
from storage.rows import instant, milliseconds
from storage.schemas import HALF as HALF_SCHEMA
from storage.tasks import land
from storage.tasks.land import PAYLOAD_COLUMNS, Landing, read_landed
from storage.wire.decode import RECORDS
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from tests.support.wait import DEADLINE_S
from txlake import protocol as p

START_AT = 1_767_225_600_000  # 2026-01-01
TOPICS = {HALF: "halves", OP: "ops", SCHEDULE: "later", ADMIN: "commands"}
LIMITS = WireLimits(TOPICS, "TRANS_CHECK_", 1 << 20, 1_000)
KAFKA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
     ("timestamp", pa.timestamp("us", tz="UTC")), ("key", pa.binary()), ("value", pa.binary()),
     ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))]
)  # fmt: skip
Headers = dict[str, bytes]


def message(number: int, headers: Headers | None = None) -> Headers:
    own = {p.PGROUP: b"shop", p.UNIQ_KEY: b"tx-%d" % number, p.REAL_TOPIC: b"orders"}
    return own | (headers or {})


def record(kind: str, offset: int, body: bytes, headers: Headers, queue: int = 0) -> dict[str, Any]:
    return {
        "topic": TOPICS[kind],
        "partition": queue,
        "offset": offset,
        "key": None,
        "value": body,
        "timestamp": instant(START_AT + offset),
        "headers": [{"key": name, "value": value} for name, value in headers.items()],
    }


def batches(records: list[dict[str, Any]], rows: int = 1_000) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_pylist(records, schema=KAFKA).to_batches(max_chunksize=rows)


def halves(count: int, size: int) -> list[dict[str, Any]]:
    chance = random.Random(count)
    return [record(HALF, n, chance.randbytes(size), message(n)) for n in range(count)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    for table in (HALF, SCHEDULE):
        lake.create_table(table)
    return lake


def run(
    lake: Lake, records: list[dict[str, Any]], rows: int = 1_000, epoch: int = 1
) -> tuple[pa.Table, dict[str, list[DataFile]]]:
    """Land records and commit the files. Output: narrow rows, files by table."""
    narrow, files = [], {}
    for batch in Landing(lake.location, epoch, LIMITS)(batches(records, rows)):
        for part, written in read_landed(batch):
            narrow.append(part)
            for table, those in written.items():
                files.setdefault(table, []).extend(those)
    for table, written_files in files.items():
        lake.add_files(table, written_files, epoch)
    return pa.concat_tables(narrow), files


def test_bodies_are_in_files_and_what_decides_comes_back(lake: Lake) -> None:
    op = record(OP, 0, b"0,1", {p.PGROUP: b"shop", p.TRAN_TYPE: b"8"})
    narrow, files = run(lake, [*halves(3, 10), op])
    assert narrow["kind"].to_pylist() == [HALF] * 3 + [OP]
    for name in PAYLOAD_COLUMNS:
        assert narrow[name].slice(0, 3).null_count == 3, name
    assert narrow["body"].to_pylist()[3] == b"0,1", "an operation is whole"
    assert narrow.schema == RECORDS
    rows = lake.read(HALF)
    assert rows["body"].to_pylist() == [row["value"] for row in halves(3, 10)]
    assert rows["epoch"].to_pylist() == [1, 1, 1]
    assert [file.rows for file in files[HALF]] == [3]


def test_what_is_too_much_for_one_file_becomes_several_with_the_same_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(land, "FILE_BYTES", 100_000)
    monkeypatch.setattr(land, "_PORTION_BYTES", 10_000)
    records = halves(1_000, 500)
    _, files = run(lake, records, rows=10)
    assert len(files[HALF]) >= 5
    assert max(file.row_bytes for file in files[HALF]) < 150_000
    found = lake.read(HALF).sort_by("queue_offset")
    assert found["body"].to_pylist() == [row["value"] for row in records]


def test_log_says_of_each_file_what_is_in_it(lake: Lake) -> None:
    records = [record(HALF, n, b"", message(n), queue=n % 3) for n in range(50, 60)]
    run(lake, records)
    (action,) = lake.table(HALF).files().to_pylist()
    assert {name: action[name] for name in action if "." in name} == {
        "null_count.queue_id": 0,
        "min.queue_id": 0,
        "max.queue_id": 2,
        "null_count.queue_offset": 0,
        "min.queue_offset": 50,
        "max.queue_offset": 59,
        "null_count.epoch": 0,
        "min.epoch": 1,
        "max.epoch": 1,
        "null_count.transaction_id": 0,
        "min.transaction_id": "tx-50",
        "max.transaction_id": "tx-59",
    }
    assert action["num_records"] == 10
    assert action["size_bytes"] == (Path(lake.path) / HALF / action["path"]).stat().st_size


def test_rows_of_several_partitions_are_in_the_order_of_their_places(lake: Lake) -> None:
    records = [record(HALF, n // 3, b"", message(n), queue=2 - n % 3) for n in range(30)]
    _, files = run(lake, records)
    rows = pq.read_table(f"{lake.path}/{HALF}/{files[HALF][0].path}")
    places = list(zip(rows["queue_id"].to_pylist(), rows["queue_offset"].to_pylist(), strict=True))
    assert places == sorted(places)


def test_schedule_is_in_due_order_and_in_groups_with_statistics(lake: Lake) -> None:
    chance = random.Random(1)
    records = []
    for offset in range(5_000):
        due = {p.DELIVER_AT: str(START_AT + chance.randrange(1_000_000)).encode()}
        records.append(record(SCHEDULE, offset, b"x", message(offset, due)))
    _, files = run(lake, records)
    part = pq.ParquetFile(f"{lake.path}/{SCHEDULE}/{files[SCHEDULE][0].path}")
    due_at = part.read(["deliver_at"])["deliver_at"].to_pylist()
    assert due_at == sorted(due_at)
    assert milliseconds(due_at[0]) >= START_AT
    at = HALF_SCHEMA.get_field_index("deliver_at")
    groups = [part.metadata.row_group(n) for n in range(part.metadata.num_row_groups)]
    assert len(groups) >= 4
    assert all(group.column(at).statistics.has_min_max for group in groups)
    assert groups[0].column(at).statistics.max <= groups[-1].column(at).statistics.min


def test_task_without_a_record_writes_nothing(lake: Lake) -> None:
    narrow, files = run(lake, [])
    assert (narrow.num_rows, files) == (0, {})


def test_task_that_runs_again_gives_the_same_rows_in_files_of_its_own(lake: Lake) -> None:
    records = halves(20, 50)
    first, second = (
        list(Landing(lake.location, 1, LIMITS)(batches(records))) for _ in range(2)
    )  # a failed attempt, or a twin
    told = [json.loads(attempt[-1].column("files")[0].as_py()) for attempt in (first, second)]
    paths = [told_of[HALF][0]["path"] for told_of in told]
    assert paths[0] != paths[1]
    tables = [pq.read_table(f"{lake.path}/{HALF}/{path}") for path in paths]
    assert tables[0].equals(tables[1])
    assert lake.read(HALF).num_rows == 0, "nobody has committed either"


def test_decoding_grows_with_the_headers_of_a_record_and_not_with_their_square(lake: Lake) -> None:
    def seconds(headers: int) -> float:
        one = record(HALF, 0, b"", message(0))
        one["headers"] += [{"key": "same", "value": b""}] * headers
        (batch,) = batches([one])
        took = []
        for _ in range(3):
            began = time.process_time()
            list(Landing(lake.location, 1, LIMITS)([batch]))
            took.append(time.process_time() - began)
        return min(took)

    seconds(10)
    # A square would be 100 times. Below 10 times is noise: of the small one most is not decoding.
    assert seconds(100_000) < 30 * seconds(10_000)


def test_file_that_is_seen_later_is_waited_for(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.files.data_files.VISIBLE_S", DEADLINE_S)
    (*_, last) = Landing(lake.location, 1, LIMITS)(batches(halves(3, 10)))
    ((_, files),) = read_landed(last)
    path = Path(lake.path) / HALF / files[HALF][0].path
    path.rename(path.with_suffix(".hidden"))
    seen = threading.Timer(0.5, path.with_suffix(".hidden").rename, [path])
    seen.start()
    assert lake.add_files(HALF, files[HALF], 1) == 3
    seen.join()
    assert lake.read(HALF).num_rows == 3


def test_file_that_vacuum_has_taken_before_its_commit_is_never_named(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.files.data_files.VISIBLE_S", 0.2)
    (*_, last) = Landing(lake.location, 1, LIMITS)(batches(halves(3, 10)))
    ((_, files),) = read_landed(last)
    (Path(lake.path) / HALF / files[HALF][0].path).unlink()
    with pytest.raises(LakeError, match="is not there after 0 s: nothing is lost, start again"):
        lake.add_files(HALF, files[HALF], 1)
    assert lake.read(HALF).num_rows == 0
    assert not lake.has_epoch(HALF, 1)
