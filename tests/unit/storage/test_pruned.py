"""Reading few rows of a large table opens only the files that the statistics leave open."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage.errors import BrokenLakeError
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.schemas import OP

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
COLUMNS = ["queue_id", "queue_offset", "stored_at", "producer_group"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Ten files of ten rows each; the last one has nulls where the others have values."""
    lake = Lake(str(tmp_path / "lake"))
    lake.create_table("op")
    for file in range(10):
        rows = [
            {
                "queue_id": n % 2,
                "queue_offset": file * 10 + n,
                "stored_at": START + dt.timedelta(seconds=file * 10 + n),
                "producer_group": None if file == 9 else f"g{file}",
                "half_offsets": [file * 10 + n],
            }
            for n in range(10)
        ]
        full = [{name: row.get(name) for name in OP.names} for row in rows]
        lake.append("op", pa.Table.from_pylist(full, schema=OP))
    return lake


def offsets(lake: Lake, bounds: Bounds, where: pc.Expression | None = None) -> list[int]:
    rows = read_rows(lake, "op", COLUMNS, bounds, where)
    assert rows.column_names == COLUMNS
    return sorted(rows["queue_offset"].to_pylist())


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, list(range(100))),
        ({"queue_offset": (95, None)}, [95, 96, 97, 98, 99]),
        ({"queue_offset": (None, 1)}, [0, 1]),
        ({"queue_offset": [7, 55, 200]}, [7, 55]),
        ({"queue_offset": []}, []),
        ({"queue_id": [1], "queue_offset": (30, 33)}, [31, 33]),
        ({"stored_at": (START + dt.timedelta(seconds=98), None)}, [98, 99]),
        ({"producer_group": ["g3"]}, list(range(30, 40))),
        ({"producer_group": ["none"]}, []),
    ],
)
def test_rows_within_all_bounds_are_read(
    lake: Lake, bounds: dict[str, Any], expected: list[int]
) -> None:
    assert offsets(lake, bounds) == expected


def test_a_condition_holds_besides_the_bounds(lake: Lake) -> None:
    assert offsets(lake, {"queue_offset": (0, 5)}, pc.field("queue_id") == 0) == [0, 2, 4]


def test_files_that_statistics_rule_out_are_not_opened(lake: Lake) -> None:
    paths = lake.handle("op").file_uris()
    for path in paths:
        kept = offsets(lake, {"queue_offset": [55]}) == [55]
        assert kept
        if "part" in path and not _holds(path, 55):
            Path(path).unlink()
    assert offsets(lake, {"queue_offset": [55]}) == [55]
    with pytest.raises(BrokenLakeError, match=r"table op .* cannot be read: .*parquet"):
        offsets(lake, {"queue_offset": [7]})


def _holds(path: str, offset: int) -> bool:
    import pyarrow.parquet as pq

    return offset in pq.read_table(path, columns=["queue_offset"])["queue_offset"].to_pylist()


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.create_table("op")
    assert offsets(lake, {"queue_offset": [1]}) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (pc.field("queue_offset") == 55, [55]),
        (pc.field("queue_offset").isin([7, 55]), [7, 55]),
        (pc.field("producer_group").is_null(), list(range(90, 100))),
        (pc.field("epoch").is_null() & (pc.field("queue_offset") > 97), [98, 99]),
        (~pc.field("epoch").is_valid() & (pc.field("queue_id") == 1), list(range(1, 100, 2))),
    ],
)
def test_a_dataset_finds_the_same_rows_as_delta_rs_would(
    lake: Lake, where: pc.Expression, expected: list[int]
) -> None:
    theirs = lake.handle("op").to_pyarrow_dataset()
    ours = lake.dataset("op")
    assert ours.schema == theirs.schema
    assert sorted(ours.to_table(filter=where)["queue_offset"].to_pylist()) == expected
    assert ours.to_table(filter=where).equals(theirs.to_table(filter=where))


def test_a_dataset_opens_only_the_files_that_the_statistics_leave_open(lake: Lake) -> None:
    kept = lake.dataset("op").get_fragments(filter=pc.field("queue_offset") == 55)
    assert len(list(kept)) == 1
