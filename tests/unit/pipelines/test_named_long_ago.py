"""An operation can name halves that stand far apart: what is between them is not read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipelines.epoch.lookups import find_ended_halves
from storage.lake.lake import Lake
from storage.rows import instant
from storage.schemas import HALF, TABLES
from tests.support.read_bytes import read_bytes

_EPOCHS = 12
_HALVES = 20_000  # of an epoch
_AT = instant(1_767_225_600_000)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake of committed halves, one file an epoch."""
    lake = Lake(str(tmp_path_factory.mktemp("long") / "lake"), is_driver=True)
    lake.create(_AT)
    for epoch in range(1, _EPOCHS + 1):
        first = (epoch - 1) * _HALVES
        key = {
            "queue_id": pa.repeat(pa.scalar(0, pa.int32()), _HALVES),
            "queue_offset": pa.array(range(first, first + _HALVES), pa.int64()),
            "transaction_id": pa.array([f"{first + n:032x}" for n in range(_HALVES)]),
            "epoch": pa.repeat(epoch, _HALVES),
        }
        outcome = {
            "arm": pa.repeat(pa.scalar(0, pa.int32()), _HALVES),
            "outcome": pa.repeat("COMMITTED", _HALVES),
        }
        lake.append("half", _rows(HALF, {**key, "stored_at": _times()}), epoch)
        lake.append("outcomes", _rows(TABLES["outcomes"], {**key, **outcome}), epoch)
    return lake


def _times() -> pa.Array:
    return pa.repeat(pa.scalar(_AT, HALF.field("stored_at").type), _HALVES)


def _rows(schema: pa.Schema, columns: dict[str, pa.Array]) -> pa.Table:
    """Return rows of a table; what is not given is null."""
    return pa.table(
        [columns.get(field.name, pa.nulls(_HALVES, field.type)) for field in schema], schema
    )


def _look_up(lake: Lake, *offsets: int) -> tuple[list[int], int]:
    """Return the offsets of the halves that are found, and the bytes that are read."""
    named = pa.table(
        {
            "queue_id": pa.array([0] * len(offsets), pa.int32()),
            "queue_offset": pa.array(offsets, pa.int64()),
        }
    )
    before = read_bytes()
    found = find_ended_halves(lake, named, _EPOCHS + 1)
    return sorted(found["queue_offset"].to_pylist()), read_bytes() - before


def test_the_oldest_and_the_newest_half_are_found_and_none_between_them_is_read(
    lake: Lake,
) -> None:
    oldest, newest = 0, _EPOCHS * _HALVES - 1
    _look_up(lake, *range(0, newest, _HALVES))  # the footers of all files are known

    (_, one) = _look_up(lake, newest)
    found, both = _look_up(lake, oldest, newest)
    assert found == [oldest, newest]
    assert both < 3 * one


def test_what_is_not_there_and_what_lands_now_is_not_found(lake: Lake) -> None:
    assert _look_up(lake, 5, _EPOCHS * _HALVES)[0] == [5]
    named = pa.table({"queue_id": pa.array([0], pa.int32()), "queue_offset": pa.array([5])})
    assert find_ended_halves(lake, named, 1).num_rows == 0
