"""Entries that a driver writes into the log of a table on a disk: each once, and read by all."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from storage.files.location import lake_location
from storage.lake.delta_log import LogEntries, log_entries
from storage.lake.lake import Lake
from tests.support.owned_rows import NOW, reasons, rows
from txlake._delta_log import entry_name

TABLE = "conflicts"


@pytest.fixture
def path(tmp_path: Path) -> str:
    Lake(str(tmp_path / "lake")).create(NOW)
    return str(tmp_path / "lake")


def log_of(path: str, table: str) -> LogEntries:
    entries = log_entries(lake_location(path), table)
    assert entries is not None
    return entries


def names(path: str, table: str) -> list[str]:
    return sorted(os.listdir(Path(path, table, "_delta_log")))


def test_a_commit_is_one_entry_that_delta_reads_and_leaves_nothing_else(path: str) -> None:
    driver = Lake(path, is_driver=True)
    version = driver.table(TABLE).version()
    before = names(path, TABLE)

    assert driver.append(TABLE, rows(1), 1) == 1
    assert driver.append(TABLE, rows(2, "second"), 2) == 1
    assert set(names(path, TABLE)) - set(before) == {entry_name(version + n) for n in (1, 2)}
    assert driver.table(TABLE).version() == DeltaTable(driver.table_path(TABLE)).version()
    assert reasons(path) == {1: ["first"], 2: ["second"]}

    newest = Path(path, TABLE, "_delta_log", names(path, TABLE)[-1]).read_text().splitlines()
    kinds = [next(iter(json.loads(line))) for line in newest]
    assert kinds == ["commitInfo", "txn", "add"]


def test_an_entry_that_is_there_is_not_written_over(path: str) -> None:
    entries = log_of(path, TABLE)
    assert entries.append_entry(1, b"{}")
    before = names(path, TABLE)
    assert not entries.append_entry(1, b"another")
    assert names(path, TABLE) == before
    assert Path(path, TABLE, "_delta_log", entry_name(1)).read_bytes() == b"{}"


def test_what_a_crash_leaves_beside_the_log_is_no_entry(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Lake(path, is_driver=True)
    driver.append(TABLE, rows(1), 1)
    with monkeypatch.context() as crash:
        crash.setattr(os, "link", crashing)
        crash.setattr(os, "unlink", crashing)
        with pytest.raises(OSError, match="crashed"):
            driver.append(TABLE, rows(2), 2)
    assert [name for name in names(path, TABLE) if name.endswith(".tmp")]

    after = Lake(path, is_driver=True)
    assert after.append(TABLE, rows(2, "again"), 2) == 1
    assert reasons(path) == {1: ["first"], 2: ["again"]}
    DeltaTable(after.table_path(TABLE)).create_checkpoint()
    assert DeltaTable(after.table_path(TABLE)).version() == after.table(TABLE).version()


def crashing(*_: object) -> None:
    raise OSError("crashed")


def test_of_many_writers_of_one_version_one_writes_it(path: str) -> None:
    writers, versions = 4, range(1, 40)
    gate = threading.Barrier(writers)
    written: list[int] = []

    def write() -> None:
        entries = log_of(path, TABLE)
        for version in versions:
            gate.wait()
            if entries.append_entry(version, b"{}"):
                written.append(version)

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == list(versions)


def test_an_entry_of_epochs_behind_a_clean_up_is_none(path: str) -> None:
    entries = log_of(path, "epochs")
    folder = Path(path, "epochs", "_delta_log")
    (folder / entry_name(9)).write_bytes(b"{}")
    assert not entries.append_entry(3, b"{}")
    (folder / entry_name(9)).unlink()
    assert entries.append_entry(4, b"{}")


def test_what_another_does_to_a_table_is_seen_at_the_next_look(path: str) -> None:
    driver = Lake(path, is_driver=True)
    for epoch in (1, 2, 3):
        driver.append(TABLE, rows(epoch), epoch)
    assert driver.table(TABLE).files().num_rows == 3

    other = DeltaTable(driver.table_path(TABLE))
    other.optimize.compact()
    assert driver.table(TABLE).files()["path"].to_pylist() == [
        Path(uri).name for uri in other.file_uris()
    ]
    assert driver.append(TABLE, rows(4), 4) == 1
    assert sorted(reasons(path)) == [1, 2, 3, 4]


def test_a_table_of_a_later_writer_version_is_left_to_delta_rs(path: str) -> None:
    driver = Lake(path, is_driver=True)
    DeltaTable(driver.table_path(TABLE)).alter.set_table_properties(
        {"delta.enableChangeDataFeed": "true", "delta.minWriterVersion": "4"}
    )
    assert driver.append(TABLE, rows(1), 1) == 1
    newest = Path(path, TABLE, "_delta_log", names(path, TABLE)[-1]).read_text()
    assert "delta-rs" in newest
