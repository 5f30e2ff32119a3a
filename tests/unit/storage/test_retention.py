"""What maintenance deletes, when, and who reads on meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from storage.lake.lake import Lake
from storage.maintenance import maintenance as maintaining
from storage.maintenance.limits import StepResult
from storage.maintenance.maintenance import Maintenance
from tests.support.lake_factory import LakeFactory, places, poll_all
from tests.support.maintenance_rounds import (
    CRASHED,
    KEPT,
    NOW_GONE,
    live_files,
    parquet_files,
    run_round,
)
from txlake import Consumer


def test_replaced_files_stay_for_their_retention_and_running_readers_read_on(
    many_files: Path, appended: Path
) -> None:
    reader = Lake(str(many_files)).dataset("half")
    before = parquet_files(many_files)
    done = run_round(many_files, KEPT, tables=CRASHED)
    assert done.files_deleted == 0
    assert before <= parquet_files(many_files)
    assert reader.to_table().num_rows == Lake(str(appended)).read("half").num_rows
    handle = DeltaTable(many_files / "half")
    handle.load_as_version(2)
    assert set(handle.to_pyarrow_table()["epoch"].to_pylist()) == {1, 2}
    gone = run_round(many_files, NOW_GONE, tables=CRASHED)
    assert gone.files_deleted == done.files_merged
    assert parquet_files(many_files) == live_files(many_files)


def age(path: Path, days: float) -> None:
    at = time.time() - days * 86_400
    os.utime(path, (at, at))


def test_files_and_log_of_a_topic_are_kept_for_streams_and_those_of_other_tables_not(
    many_files: Path,
) -> None:
    kept = replace(NOW_GONE, stream_retention_ms=7 * 86_400_000)
    logs = {t: sorted((many_files / t / "_delta_log").glob("*.json")) for t in ("half", "topics/1")}
    files = parquet_files(many_files, ["topics"])
    for _ in range(3):
        run_round(many_files, kept)
    assert all(path.exists() for path in logs["topics/1"])
    assert not any(path.exists() for path in logs["half"][:-1])
    assert files < parquet_files(many_files, ["topics"])
    assert parquet_files(many_files, CRASHED) == live_files(many_files, CRASHED)
    for path in (many_files / "topics/1" / "_delta_log").iterdir():
        age(path, 7.1)
    young = sorted(files)[0]
    for name in files - {young}:
        age(many_files / name, 7.1)
    age(many_files / young, 6.9)
    Lake(str(many_files)).append("topics/1", Lake(str(many_files)).read("topics/1").slice(0, 1))
    run_round(many_files, kept)
    gone = files - parquet_files(many_files, ["topics"])
    assert gone == files - live_files(many_files) - {young}
    assert not logs["topics/1"][0].exists()


def test_of_old_checkpoints_one_in_a_thousand_versions_stays(
    many_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintaining, "_CHECKPOINT_DISTANCE", 10)
    kept = replace(NOW_GONE, checkpoint_commits=1, stream_retention_ms=7 * 86_400_000)
    lake = Lake(str(many_files), is_driver=True)
    maintenance = Maintenance(lake, kept)
    rows = lake.read("topics/1").slice(0, 1)
    for _ in range(40):
        lake.append("topics/1", rows)
        list(maintenance.steps("topics/1"))
    log = many_files / "topics/1" / "_delta_log"
    found = sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
    newest = lake.handle("topics/1").version()
    old = [version for version in found if version // 10 < newest // 10]
    assert len({version // 10 for version in old}) == len(old) >= 3
    assert len(list(log.glob("*.json"))) == newest + 1
    assert Lake(str(many_files)).read("topics/1").num_rows == lake.read("topics/1").num_rows


def test_a_handle_that_slept_through_a_clean_up_of_the_log_goes_on(many_files: Path) -> None:
    sleeper = Lake(str(many_files))
    before = sleeper.read("half")
    next_entry = f"{sleeper.handle('half').version() + 1:020}.json"
    for _ in range(3):  # each round deletes the entries of the one before
        run_round(many_files, tables=["half"])
        Lake(str(many_files)).append("half", before.slice(0, 1))
    assert not (many_files / "half" / "_delta_log" / next_entry).exists()
    assert sleeper.read("half").num_rows == before.num_rows + 3


def test_a_consumer_reads_on_while_its_topic_is_merged_and_vacuumed(tmp_path: Path) -> None:
    factory = LakeFactory(tmp_path / "lake")
    factory.make_topic("orders", 2)
    for _ in range(6):
        factory.deliver("orders", {0: 3, 1: 2})
    maintenance = Maintenance(Lake(str(factory.path)), NOW_GONE)
    with Consumer(factory.path, "points", ["orders"]) as consumer:
        seen = poll_all(consumer, 4, most=4)
        list(maintenance.steps("topics/0", is_full=True))
        factory.deliver("orders", {0: 3, 1: 2})
        seen += poll_all(consumer, 26 - len(seen), most=5)
        factory.deliver("orders", {1: 9})
        list(maintenance.steps("topics/0", is_full=True))
        seen += poll_all(consumer, 44 - len(seen))
    assert places(seen, 0) == list(range(21))
    assert places(seen, 1) == list(range(23))


def test_the_log_is_cut_after_so_many_commits_and_vacuum_waits_for_something_to_delete(
    many_files: Path,
) -> None:
    lake = Lake(str(many_files), is_driver=True)
    maintenance = Maintenance(lake, KEPT)
    list(maintenance.steps("half"))
    rows = lake.read("half").slice(0, 1)
    cut = []
    for _ in range(8):
        lake.append("half", rows)
        done = sum(maintenance.steps("half"), StepResult())
        cut.append(done.checkpoints)
        assert done.files_deleted == 0
    assert 1 <= sum(cut) <= 3
    assert DeltaTable(many_files / "half").metadata().configuration[
        "delta.logRetentionDuration"
    ] == ("interval 3600 seconds")


def test_what_the_run_before_replaced_goes_though_nothing_is_written_since(
    many_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = replace(NOW_GONE, stream_retention_ms=4 * 3_600_000)
    run_round(many_files, kept, tables=["topics/1"])
    replaced = parquet_files(many_files) - live_files(many_files)
    replaced = {name for name in replaced if name.startswith("topics/1/")}

    passed_s = 0.0
    monkeypatch.setattr(
        maintaining,
        "time",
        SimpleNamespace(monotonic=lambda: passed_s, time=lambda: time.time() + passed_s),
    )
    after_restart = Maintenance(Lake(str(many_files), is_driver=True), kept)
    looks: list[float] = []
    stale = after_restart._stale
    monkeypatch.setattr(
        after_restart, "_stale", lambda table: looks.append(passed_s / 3_600) or stale(table)
    )

    deleted = {}
    for hours in (0, 0.5, 1, 2, 3, 3.5, 4, 4.5, 5, 8, 12, 99):
        passed_s = hours * 3_600
        done = sum(after_restart.steps("topics/1"), StepResult())
        deleted[hours] = done.files_deleted

    assert {hours: count for hours, count in deleted.items() if count} == {4: len(replaced)}
    assert looks == [0, 1, 2, 3, 4]  # in the time that they are kept, and not again
    assert not replaced & parquet_files(many_files)
