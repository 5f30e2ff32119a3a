"""The functions of docs/readers.md, on a lake with everything in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from storage.files.data_files import write_file
from storage.lake.lake import Lake
from storage.schemas import TABLES
from tests.support.in_memory_job import InMemoryJob
from txlake.protocol import COMMIT

PAGE = (Path(__file__).parents[3] / "docs" / "readers.md").read_text("utf-8")
page: dict[str, Any] = {}
for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
    exec(block, page)  # noqa: S102


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", default_queue_count=2)


def deliver(job: InMemoryJob, *bodies: str) -> None:
    for body in bodies:
        job.end(COMMIT, job.half(body, body=body.encode()))
    job.run()


def test_a_topic_is_followed_as_the_page_says(job: InMemoryJob) -> None:
    deliver(job, "a", "b", "c")
    table, positions = DeltaTable(job.lake.table_path("topics/1")), dict[int, int]()
    assert [row["body"] for row in page["next_messages"](table, positions)] == [b"a", b"c", b"b"]
    assert page["next_messages"](table, positions) == []
    deliver(job, "d", "e")
    assert [row["body"] for row in page["next_messages"](table, positions)] == [b"e", b"d"]
    assert positions == {0: 3, 1: 2}

    with pytest.raises(ValueError, match="queue 0: offset 0 is missing"):
        table.delete("queue_id = 0 AND queue_offset < 2")
        page["next_messages"](table, {})


def test_bodies_are_columns_as_the_page_says(job: InMemoryJob, tmp_path: Path) -> None:
    deliver(job, '{"order_id": "o-1", "amount": 5}', '{"order_id": "o-2", "amount": "many"}', "no")
    schema = {"properties": {"order_id": {"type": "string"}, "amount": {"type": "integer"}}}
    (tmp_path / "orders.json").write_text(json.dumps(schema), "utf-8")

    table = DeltaTable(job.lake.table_path("topics/1"))
    frame = page["read_orders"](table, tmp_path / "orders.json").sort("order_id", nulls_last=True)
    shown = re.findall(r"^(o-\d)? +(\d+)? *(\S.*)?$", PAGE.partition("body_error\n")[2], re.M)[:3]
    rows = frame.select("order_id", "amount", "body_error").rows()
    assert rows == [(a or None, int(b) if b else None, c or None) for a, b, c in shown]


def test_the_chain_is_checked_as_the_page_says(job: InMemoryJob) -> None:
    deliver(job, "ä", "b")
    deliver(job, "c")
    job.run()
    rows, lake_id = job.lake.read("epochs").to_pylist(), job.lake.lake_id()
    rows.sort(key=lambda row: (row["epoch"], row["state"] == "committed"))
    assert len(rows) == 6
    assert page["broken_link"](rows, lake_id) is None
    assert page["broken_link"](rows, "another") == rows[0]
    assert page["broken_link"](rows[:2] + rows[3:], lake_id) == rows[3]
    changed = [*rows[:4], {**rows[4], "rule_version": 1}, *rows[5:]]
    assert page["broken_link"](changed, lake_id) == changed[4]


def test_a_reader_needs_what_the_page_says(sound_lake: Path, tmp_path: Path) -> None:
    lake, codecs = Lake(str(sound_lake)), set[str]()
    for table in (*TABLES, "topics/1"):
        delta = DeltaTable(lake.table_path(table))
        versions = delta.protocol()
        assert (versions.min_reader_version, versions.min_writer_version) == (1, 2), table
        codecs |= {codec for path in delta.file_uris() for codec in codecs_of(path)}

    (tmp_path / "topics" / "1").mkdir(parents=True)  # as an epoch writes many messages
    many = pa.concat_tables([lake.read("topics/1")] * 1_000)
    write_file(Lake(str(tmp_path)).location, "topics/1", "new.parquet", many)
    codecs |= codecs_of(f"{tmp_path}/topics/1/new.parquet")
    assert codecs == {"ZSTD", "SNAPPY"}


def codecs_of(path: str) -> set[str]:
    """Return how the columns of a file are compressed."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    return {group.column(number).compression for number in range(group.num_columns)}
