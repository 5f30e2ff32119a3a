"""Maintenance changes no row, whatever becomes of it; readers and recovery go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableAlterer

from pipelines.epoch.recorded_state import restore
from storage.errors import OwnerError
from storage.files.data_files import DataFile
from storage.files.location import LakeLocation
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.lake.pruned import read_rows
from storage.maintenance import maintenance as maintaining
from storage.maintenance import merge as merging
from storage.maintenance.expiry import delete
from storage.maintenance.maintenance import Maintenance
from storage.maintenance.merge import files_of, merge
from tests.support.damage import look_at_the_tables_alone
from tests.support.job import plain_state
from tests.support.lake_rows import NOW
from tests.support.maintenance_rounds import (
    CRASHED,
    KEPT,
    NOW_GONE,
    Rows,
    check_sound,
    live_files,
    parquet_files,
    rows_in,
    run_round,
)

READ = (
    "half",
    "op",
    "schedule",
    "admin",
    "outcomes",
    "conflicts",
    "checks",
    "epochs",
    "pending",
    "waiting",
    "delayed",
    "deliveries",
    "catalog",
    "topics/1",
)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_round_leaves_every_row_and_few_files(
    many_files: Path, appended_rows: Rows, is_full: bool
) -> None:
    done = run_round(many_files, is_full=is_full)
    check_sound(many_files, appended_rows)
    assert done.merges >= 9
    assert done.bytes_after < done.bytes_before
    if is_full:
        assert all(len(files_of(Lake(str(many_files)), table)) == 1 for table in ("half", "epochs"))
        assert run_round(many_files).merges == 0


def test_a_full_round_does_what_was_foretold(many_files: Path) -> None:
    before = parquet_files(many_files)
    maintenance = Maintenance(Lake(str(many_files)), NOW_GONE)
    foretold = {table: maintenance.estimate(table) for table in maintenance.tables()}
    assert parquet_files(many_files) == before
    done = run_round(many_files, KEPT)
    assert done.merges == sum(work.merges for _, work in foretold.values())
    assert done.files_merged == sum(work.files_merged for _, work in foretold.values())
    assert done.bytes_before == sum(work.bytes_before for _, work in foretold.values())


def test_state_recovery_and_lookups_read_the_same_after_merges(many_files: Path) -> None:
    def seen(lake: Lake) -> dict[str, Any]:
        progress = read_progress(lake)
        held = {(t, e): lake.has_epoch(t, e) for t in READ for e in (1, 7, 12)}
        ids = {"transaction_id": ["commit", "silent"]}
        return {
            "state": plain_state(restore(lake, progress)),
            "progress": progress,
            "held": held,
            "last": {table: lake.max_value(table, "epoch") for table in READ},
            "found": sorted(map(repr, read_rows(lake, "half", ["body"], ids).to_pylist())),
        }

    before = seen(Lake(str(many_files)))
    run_round(many_files, tables=READ)
    assert seen(Lake(str(many_files))) == before


def test_a_merged_file_is_sorted_and_its_statistics_are_its_rows(many_files: Path) -> None:
    tables = ("half", "outcomes", "epochs", "topics/1")
    run_round(many_files, tables=tables)
    lake = Lake(str(many_files))
    for table in tables:
        actions = pa.table(lake.handle(table).get_add_actions(flatten=True))
        rows = pq.ParquetFile(many_files / table / actions["path"][0].as_py()).read()
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


def half_written(location: LakeLocation, table: str, name: str, *_: Any, **__: Any) -> None:
    Path(location.table_path(table), name).write_bytes(b"PAR1 and no more")
    raise Crash


def dying(original: Callable[..., Any], when: str) -> Callable[..., Any]:
    """Return what dies before it does anything, or when it is done."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            original(*args, **kwargs)
        raise Crash

    return wrapped


# The calls that change something on the disk.
STEPS: dict[str, tuple[Any, str]] = {
    "properties": (TableAlterer, "set_table_properties"),
    "merged file": (merging, "write_file"),
    "merge": (DeltaTable, "create_write_transaction"),
    "checkpoint": (DeltaTable, "create_checkpoint"),
    "log": (DeltaTable, "cleanup_metadata"),
    "vacuum": (maintaining, "delete_files"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_any_step_leaves_a_sound_lake_and_the_next_round_does_the_rest(
    many_files: Path, appended_rows: Rows, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    look_at_the_tables_alone(monkeypatch)  # the rows are those of before
    with monkeypatch.context() as patch:
        owner, name = STEPS[step]
        is_torn = step == "merged file" and when == "before"
        patch.setattr(owner, name, half_written if is_torn else dying(getattr(owner, name), when))
        with pytest.raises(Crash):
            run_round(many_files, tables=CRASHED)
    assert rows_in(many_files, CRASHED) == {table: appended_rows[table] for table in CRASHED}
    for _ in range(2):  # VACUUM looks at what is older than now
        run_round(many_files, tables=CRASHED)
    check_sound(many_files, appended_rows, CRASHED)
    assert parquet_files(many_files, CRASHED) == live_files(many_files, CRASHED)


@pytest.mark.parametrize(
    "is_current",
    [
        pytest.param(False, id="on the version before it, as on a store"),
        pytest.param(True, id="on its version, as on a disk"),
    ],
)
def test_another_writers_commit_makes_a_merge_fail_and_nothing_happened(
    many_files: Path, appended_rows: Rows, monkeypatch: pytest.MonkeyPatch, is_current: bool
) -> None:
    lake = Lake(str(many_files), is_driver=True)
    files = files_of(lake, "half")
    write = merging.write_file

    def write_while_another_merges(*args: Any, **kwargs: Any) -> DataFile:
        monkeypatch.setattr(merging, "write_file", write)
        if not is_current:
            stale = lake.handle("half")
            monkeypatch.setattr(lake, "handle", lambda _: stale)
        assert merge(Lake(str(many_files)), "half", files, 1 << 25) is not None
        return write(*args, **kwargs)

    monkeypatch.setattr(merging, "write_file", write_while_another_merges)
    with pytest.raises(CommitFailedError):
        merge(lake, "half", files, 1 << 25)
    check_sound(many_files, appended_rows)


def test_files_that_another_writer_has_merged_meanwhile_are_not_deleted(
    many_files: Path, appended_rows: Rows
) -> None:
    lake = Lake(str(many_files), is_driver=True)
    files = files_of(lake, "half")
    assert merge(Lake(str(many_files)), "half", files, 1 << 25) is not None
    with pytest.raises(CommitFailedError, match="another writer has replaced "):
        delete(lake, "half", files)
    check_sound(many_files, appended_rows)


def test_a_driver_whose_lake_is_anothers_commits_no_merge(
    many_files: Path, appended_rows: Rows
) -> None:
    def refuse() -> None:
        raise OwnerError("the lake is another's")

    maintenance = Maintenance(Lake(str(many_files), is_driver=True), NOW_GONE, refuse)
    maintenance._configured.add("half")
    before = Lake(str(many_files)).handle("half").version()
    with pytest.raises(OwnerError):
        list(maintenance.steps("half", is_full=True))
    assert Lake(str(many_files)).handle("half").version() == before
    check_sound(many_files, appended_rows)


def test_rows_too_large_for_memory_are_left_alone_and_large_ones_are_closed(
    many_files: Path, appended_rows: Rows
) -> None:
    lake = Lake(str(many_files))
    files = files_of(lake, "half")
    assert merge(lake, "half", files, 1) is None
    size = lake.read("half").nbytes
    merged = merge(lake, "half", files, size // 2)
    assert merged is not None
    assert 2 <= merged.files_merged < len(files)
    assert [f.path.startswith("closed-") for f in files_of(lake, "half")].count(True) == 1
    check_sound(many_files, appended_rows)
    maintenance = Maintenance(lake, replace(NOW_GONE, file_bytes_max=1))
    assert maintenance.estimate("half")[1].merges == 0


def test_a_table_that_nothing_was_written_to_is_not_touched(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.create(NOW)
    maintenance = Maintenance(lake, NOW_GONE)
    assert [list(maintenance.steps(table, is_full=True)) for table in maintenance.tables()] == [
        [] for _ in maintenance.tables()
    ]
    assert lake.handle("half").version() == 0
