"""Epochs that wait in memory, and one that is too large for that, are all in their tables."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from storage.errors import OwnerError
from storage.lake.buffered import BufferedLake
from storage.lake.lake import Lake
from storage.rows import to_rows
from storage.schemas import DELIVERIES
from tests.support.owned_rows import NOW, reasons, rows


@pytest.fixture
def lake(tmp_path: Path) -> BufferedLake:
    """A lake in which the rows of epoch 1 wait to be written to two tables."""
    Lake(str(tmp_path / "lake")).create(NOW)
    lake = BufferedLake(str(tmp_path / "lake"))
    for table in ("conflicts", "deliveries"):
        lake.append(table, rows_of(table, 1), 1)
    return lake


def rows_of(table: str, epoch: int) -> pa.Table:
    """Return the one row of an epoch."""
    if table == "conflicts":
        return rows(epoch)
    return to_rows(rows(epoch).select(["epoch"]), DELIVERIES)


def epochs_of(lake: Lake, table: str) -> list[int]:
    """Return the epochs of the rows on disk."""
    return sorted(Lake(lake.path).read(table, ["epoch"])["epoch"].to_pylist())


def test_no_thread_streams_an_epoch_before_the_earlier_ones_are_written(
    lake: BufferedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = BufferedLake._write
    overtaken = threading.Event()

    def slow_write(self: BufferedLake, table: str, waiting: pa.Table) -> None:
        overtaken.wait(0.5)  # so long a stream has time to come first
        write(self, table, waiting)

    def stream(table: str) -> None:
        lake.append_stream(table, [rows_of(table, 2)], 2)
        overtaken.set()

    monkeypatch.setattr(BufferedLake, "_write", slow_write)
    lake.begin_flush()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(stream, ("conflicts", "deliveries")))
    lake.wait()
    assert epochs_of(lake, "conflicts") == epochs_of(lake, "deliveries") == [1, 2]


def test_no_thread_streams_an_epoch_behind_earlier_ones_that_could_not_be_written(
    lake: BufferedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: BufferedLake, table: str, waiting: pa.Table) -> None:
        raise OSError("the disk is away")

    monkeypatch.setattr(BufferedLake, "_write", refuse)
    lake.begin_flush()
    for table in ("conflicts", "deliveries"):
        with pytest.raises(OSError, match="the disk is away"):
            lake.append_stream(table, [rows_of(table, 2)], 2)
        assert epochs_of(lake, table) == []


def test_rows_that_come_behind_later_epochs_of_another_are_named(lake: BufferedLake) -> None:
    Lake(lake.path).append("conflicts", rows(2, "another's"), 2)
    lake.begin_flush()
    with pytest.raises(OwnerError, match=r"conflicts of the lake .* rows up to epoch 1 were not"):
        lake.wait()
    assert reasons(lake.path) == {2: ["another's"]}


def test_a_stream_that_another_was_before_is_named(lake: BufferedLake) -> None:
    lake.begin_flush()
    lake.wait()
    Lake(lake.path).append("conflicts", rows(3, "another's"), 3)
    with pytest.raises(OwnerError, match="rows up to epoch 2 were not"):
        lake.append_stream("conflicts", [rows(2)], 2)
    assert reasons(lake.path) == {1: ["first"], 3: ["another's"]}
