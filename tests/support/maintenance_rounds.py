"""Rounds of maintenance over a lake, and what must be the same after them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from storage.lake.lake import Lake
from storage.maintenance.limits import MaintenanceLimits, StepResult
from storage.maintenance.maintenance import Maintenance
from storage.maintenance.merge import files_of
from storage.verify.run import verify

NOW_GONE = MaintenanceLimits(
    3, 1 << 25, 4, log_retention_ms=0, file_retention_ms=0, stream_retention_ms=0
)
CRASHED = ("half", "epochs")
Rows = dict[str, list[str]]
KEPT = replace(NOW_GONE, log_retention_ms=3_600_000, file_retention_ms=3_600_000)


def run_round(
    folder: Path,
    limits: MaintenanceLimits = NOW_GONE,
    *,
    is_full: bool = True,
    tables: Collection[str] = (),
) -> StepResult:
    maintenance = Maintenance(Lake(str(folder), is_driver=True), limits)
    done = StepResult()
    for table in tables or maintenance.tables():
        done = sum(maintenance.steps(table, is_full=is_full), done)
    return done


def rows_in(folder: Path, tables: Collection[str] = ()) -> dict[str, list[str]]:
    lake = Lake(str(folder))
    tables = tables or Maintenance(lake, NOW_GONE).tables()
    return {table: sorted(map(repr, lake.read(table).to_pylist())) for table in tables}


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
