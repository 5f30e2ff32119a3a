"""Maintenance changes no row, whatever becomes of it; readers and recovery go on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipelines.restore import restore
from storage import maintenance as maintaining
from storage import merge as merging
from storage.epochs import read_progress
from storage.lake import Lake
from storage.maintenance import Maintenance, MaintenanceLimits, Work
from storage.merge import files_of, merge
from storage.pruned import read_pruned
from storage.verify.run import verify
from tests.job import plain_state
from tests.lake_factory import LakeFactory, places, poll_all
from tests.lake_rows import NOW
from tests.sound_lake import sound_rows
from txlake import Consumer

NOW_GONE = MaintenanceLimits(
    3, 1 << 25, 4, log_retention_ms=0, file_retention_ms=0, stream_retention_ms=0
)
CRASHED = ("half", "epochs")
READ = ("half", "op", "schedule", "admin", "outcomes", "conflicts", "checks", "epochs", "pending",
        "waiting", "delayed", "deliveries", "catalog", "topics/1")  # fmt: skip
Rows = dict[str, list[str]]
KEPT = replace(NOW_GONE, log_retention_ms=3_600_000, file_retention_ms=3_600_000)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sound lake as the job would: a file for each table and epoch."""
    folder = tmp_path_factory.mktemp("maintenance") / "lake"
    lake = Lake(str(folder))
    lake.create(NOW)
    sound = sound_rows()
    sound.seal(lake.tables_id())
    for table, rows in sound._tables():
        if table in ("lake", "consumer_offsets"):
            continue
        if table.startswith("topics/"):
            lake.create_table(table)
        epochs = sorted(set(rows["epoch"].to_pylist()))
        for epoch in epochs:
            lake.append(table, rows.filter(pc.equal(rows["epoch"], epoch)), epoch)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "lake")
    return tmp_path / "lake"


def run_round(
    folder: Path,
    limits: MaintenanceLimits = NOW_GONE,
    *,
    is_full: bool = True,
    tables: Collection[str] = (),
) -> Work:
    maintenance = Maintenance(Lake(str(folder), is_maintained=True), limits)
    done = Work()
    for table in tables or maintenance.tables():
        done = sum(maintenance.steps(table, is_full=is_full), done)
    return done


def rows_in(folder: Path, tables: Collection[str] = ()) -> dict[str, list[str]]:
    lake = Lake(str(folder))
    tables = tables or Maintenance(lake, NOW_GONE).tables()
    return {table: sorted(map(repr, lake.read(table).to_pylist())) for table in tables}


@pytest.fixture(scope="module")
def rows(original: Path) -> Rows:
    return rows_in(original)


def check_sound(folder: Path, rows: Rows, tables: Collection[str] = ()) -> None:
    found = rows_in(folder, tables)
    assert found == {table: rows[table] for table in found}
    assert [f.invariant.name for f in verify(Lake(str(folder))).findings if f.violations] == []


def parquet_files(folder: Path, tables: Collection[str] = ()) -> set[str]:
    paths = [path.relative_to(folder) for path in folder.rglob("*.parquet")]
    data = {path for path in paths if "_delta_log" not in path.parts}
    return {str(path) for path in data if not tables or path.parts[0] in tables}


def live_files(folder: Path, tables: Collection[str] = ()) -> set[str]:
    maintenance = Maintenance(Lake(str(folder)), NOW_GONE)
    named = tables or [*maintenance.tables(), "lake"]
    return {f"{t}/{f.path}" for t in named for f in files_of(maintenance.lake, t)}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_round_leaves_every_row_and_few_files(folder: Path, rows: Rows, is_full: bool) -> None:
    done = run_round(folder, is_full=is_full)
    check_sound(folder, rows)
    assert done.merges >= 9
    assert done.bytes_after < done.bytes_before
    if is_full:
        assert all(len(files_of(Lake(str(folder)), table)) == 1 for table in ("half", "epochs"))
        assert run_round(folder).merges == 0


def test_a_full_round_does_what_was_foretold(folder: Path) -> None:
    before = parquet_files(folder)
    maintenance = Maintenance(Lake(str(folder)), NOW_GONE)
    foretold = {table: maintenance.foretell(table) for table in maintenance.tables()}
    assert parquet_files(folder) == before
    done = run_round(folder, KEPT)
    assert done.merges == sum(work.merges for _, work in foretold.values())
    assert done.files_merged == sum(work.files_merged for _, work in foretold.values())
    assert done.bytes_before == sum(work.bytes_before for _, work in foretold.values())


def test_state_recovery_and_lookups_read_the_same_after_merges(folder: Path) -> None:
    def seen(lake: Lake) -> dict[str, Any]:
        progress = read_progress(lake)
        held = {(t, e): lake.holds(t, e) for t in READ for e in (1, 7, 12)}
        ids = {"transaction_id": ["commit", "silent"]}
        return {
            "state": plain_state(restore(lake, progress)),
            "progress": progress,
            "held": held,
            "last": {table: lake.last(table, "epoch") for table in READ},
            "found": sorted(map(repr, read_pruned(lake, "half", ["body"], ids).to_pylist())),
        }

    before = seen(Lake(str(folder)))
    run_round(folder, tables=READ)
    assert seen(Lake(str(folder))) == before


def test_a_merged_file_is_sorted_and_its_statistics_are_its_rows(folder: Path) -> None:
    tables = ("half", "outcomes", "epochs", "topics/1")
    run_round(folder, tables=tables)
    lake = Lake(str(folder))
    for table in tables:
        actions = pa.table(lake.handle(table).get_add_actions(flatten=True))
        rows = pq.ParquetFile(folder / table / actions["path"][0].as_py()).read()
        assert actions["num_records"].to_pylist() == [rows.num_rows]
        names = [n.removeprefix("min.") for n in actions.column_names if n.startswith("min.")]
        assert "epoch" in names
        for name in names:
            found = pc.min_max(rows[name]).as_py()
            assert actions[f"min.{name}"][0].as_py() == found["min"], (table, name)
            assert actions[f"max.{name}"][0].as_py() == found["max"], (table, name)
        if table != "epochs":
            keys = rows.select(["queue_id", "queue_offset"]).to_pylist()
            assert [tuple(k.values()) for k in keys] == sorted(tuple(k.values()) for k in keys)


class Crash(BaseException):
    """What a test raises in place of a crash."""


def _half_written(lake: Lake, table: str, name: str, rows: pa.Table) -> int:
    (Path(lake.table_path(table)) / name).write_bytes(b"PAR1 and no more")
    raise Crash


def _dies(original: Callable[..., Any], when: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            original(*args, **kwargs)
        raise Crash

    return wrapped


STEPS = {
    "properties": "_configure",
    "merged file": "_write",
    "merge": "create_write_transaction",
    "checkpoint": "create_checkpoint",
    "log": "cleanup_metadata",
    "vacuum": "delete_files",
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_any_step_leaves_a_sound_lake_and_the_next_round_does_the_rest(
    folder: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    with monkeypatch.context() as patch:
        if step == "merged file":
            dying = _half_written if when == "before" else _dies(merging._write, when)
            patch.setattr(merging, "_write", dying)
        else:
            owners: dict[str, Any] = {"properties": Maintenance, "vacuum": maintaining}
            owner = owners.get(step, DeltaTable)
            name = STEPS[step]
            patch.setattr(owner, name, _dies(getattr(owner, name), when))
        with pytest.raises(Crash):
            run_round(folder, tables=CRASHED)
    assert rows_in(folder, CRASHED) == {table: rows[table] for table in CRASHED}
    for _ in range(2):  # VACUUM looks at what is older than now
        run_round(folder, tables=CRASHED)
    check_sound(folder, rows, CRASHED)
    assert parquet_files(folder, CRASHED) == live_files(folder, CRASHED)


def test_another_writers_commit_makes_a_merge_fail_and_nothing_happened(
    folder: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(folder))
    files = files_of(lake, "half")
    write = merging._write

    def write_while_another_merges(*args: Any) -> int:
        monkeypatch.setattr(merging, "_write", write)
        stale = lake.handle("half")
        monkeypatch.setattr(lake, "handle", lambda _: stale)
        assert merge(Lake(str(folder)), "half", files, 1 << 25) is not None
        return write(*args)

    monkeypatch.setattr(merging, "_write", write_while_another_merges)
    with pytest.raises(CommitFailedError):
        merge(lake, "half", files, 1 << 25)
    check_sound(folder, rows)


def test_replaced_files_stay_for_their_retention_and_running_readers_read_on(
    folder: Path, original: Path
) -> None:
    reader = Lake(str(folder)).dataset("half")
    before = parquet_files(folder)
    done = run_round(folder, KEPT, tables=CRASHED)
    assert done.files_deleted == 0
    assert before <= parquet_files(folder)
    assert reader.to_table().num_rows == Lake(str(original)).read("half").num_rows
    handle = DeltaTable(folder / "half")
    handle.load_as_version(2)
    assert set(handle.to_pyarrow_table()["epoch"].to_pylist()) == {1, 2}
    gone = run_round(folder, NOW_GONE, tables=CRASHED)
    assert gone.files_deleted == done.files_merged
    assert parquet_files(folder) == live_files(folder)


def age(path: Path, days: float) -> None:
    at = time.time() - days * 86_400
    os.utime(path, (at, at))


def test_files_and_log_of_a_topic_are_kept_for_streams_and_those_of_other_tables_not(
    folder: Path,
) -> None:
    kept = replace(NOW_GONE, stream_retention_ms=7 * 86_400_000)
    logs = {t: sorted((folder / t / "_delta_log").glob("*.json")) for t in ("half", "topics/1")}
    files = parquet_files(folder, ["topics"])
    for _ in range(3):
        run_round(folder, kept)
    assert all(path.exists() for path in logs["topics/1"])
    assert not any(path.exists() for path in logs["half"][:-1])
    assert files < parquet_files(folder, ["topics"])
    assert parquet_files(folder, CRASHED) == live_files(folder, CRASHED)
    for path in (folder / "topics/1" / "_delta_log").iterdir():
        age(path, 7.1)
    young = sorted(files)[0]
    for name in files - {young}:
        age(folder / name, 7.1)
    age(folder / young, 6.9)
    Lake(str(folder)).append("topics/1", Lake(str(folder)).read("topics/1").slice(0, 1))
    run_round(folder, kept)
    gone = files - parquet_files(folder, ["topics"])
    assert gone == files - live_files(folder) - {young}
    assert not logs["topics/1"][0].exists()


def test_of_old_checkpoints_one_in_a_thousand_versions_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintaining, "_CHECKPOINT_DISTANCE", 10)
    kept = replace(NOW_GONE, checkpoint_commits=1, stream_retention_ms=7 * 86_400_000)
    lake = Lake(str(folder), is_maintained=True)
    maintenance = Maintenance(lake, kept)
    rows = lake.read("topics/1").slice(0, 1)
    for _ in range(40):
        lake.append("topics/1", rows)
        list(maintenance.steps("topics/1"))
    log = folder / "topics/1" / "_delta_log"
    found = sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
    newest = lake.handle("topics/1").version()
    old = [version for version in found if version // 10 < newest // 10]
    assert len({version // 10 for version in old}) == len(old) >= 3
    assert len(list(log.glob("*.json"))) == newest + 1
    assert Lake(str(folder)).read("topics/1").num_rows == lake.read("topics/1").num_rows


def test_a_handle_that_slept_through_a_clean_up_of_the_log_goes_on(folder: Path) -> None:
    sleeper = Lake(str(folder))
    before = sleeper.read("half")
    next_entry = f"{sleeper.handle('half').version() + 1:020}.json"
    for _ in range(3):  # each round deletes the entries of the one before
        run_round(folder, tables=["half"])
        Lake(str(folder)).append("half", before.slice(0, 1))
    assert not (folder / "half" / "_delta_log" / next_entry).exists()
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


def test_rows_too_large_for_memory_are_left_alone_and_large_ones_are_closed(
    folder: Path, rows: Rows
) -> None:
    lake = Lake(str(folder))
    files = files_of(lake, "half")
    assert merge(lake, "half", files, 1) is None
    size = lake.read("half").nbytes
    merged = merge(lake, "half", files, size // 2)
    assert merged is not None
    assert 2 <= merged.files_before < len(files)
    assert [f.path.startswith("closed-") for f in files_of(lake, "half")].count(True) == 1
    check_sound(folder, rows)
    maintenance = Maintenance(lake, replace(NOW_GONE, file_bytes_max=1))
    assert maintenance.foretell("half")[1].merges == 0


def test_a_table_that_nothing_was_written_to_is_not_touched(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.create(NOW)
    maintenance = Maintenance(lake, NOW_GONE)
    assert [list(maintenance.steps(table, is_full=True)) for table in maintenance.tables()] == [
        [] for _ in maintenance.tables()
    ]
    assert lake.handle("half").version() == 0


def test_the_log_is_cut_after_so_many_commits_and_vacuum_waits_for_something_to_delete(
    folder: Path,
) -> None:
    lake = Lake(str(folder), is_maintained=True)
    maintenance = Maintenance(lake, KEPT)
    list(maintenance.steps("half"))
    rows = lake.read("half").slice(0, 1)
    cut = []
    for _ in range(8):
        lake.append("half", rows)
        done = sum(maintenance.steps("half"), Work())
        cut.append(done.checkpoints)
        assert done.files_deleted == 0
    assert 1 <= sum(cut) <= 3
    assert DeltaTable(folder / "half").metadata().configuration["delta.logRetentionDuration"] == (
        "interval 3600 seconds"
    )
