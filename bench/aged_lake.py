"""Make a synthetic lake that is as old as wanted: what is kept is written, the rest is deleted.

Epochs, offsets, transaction identifiers and the versions of the tables are those of a lake with so
many transactions behind it. The last epochs are written one by one, as a job commits them, with a
floor that moves and with its maintenance: small files are merged, old ones deleted, logs cut. What
came before them was never written: each table's log begins with an entry that says how many of its
rows are deleted, under the number that it would have by then.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from deltalake import CommitProperties, Transaction

from bench import synthetic_lake
from bench.synthetic_lake import EPOCH_MS, QUEUES, SNAPSHOT_EPOCHS, START_MS
from bench.synthetic_rows import SyntheticRows
from storage.lake.epochs import read_progress
from storage.lake.floor import Floor
from storage.lake.lake import Lake
from storage.maintenance.limits import MaintenanceLimits
from storage.maintenance.maintenance import Maintenance
from storage.rows import instant
from storage.schemas import TABLES
from txlake.protocol import deleted_id

_ORDERS = "topics/1"
_HOUR_MS = 3_600_000
# Maintenance makes a merge for so many commits, and one of those for so many of them.
_COMMITS_AN_EPOCH = 16 / 15


@dataclass(frozen=True)
class Age:
    """How old a lake is, in epochs: its newest one, and how many of the last are kept."""

    newest: int
    kept: int

    @property
    def first_written(self) -> int:
        """Returns the first epoch to write: an hour before what is kept, for its tombstones."""
        return max(1, self.newest - self.kept - _HOUR_MS // EPOCH_MS)

    def floor_at(self, epoch: int) -> Floor:
        """Returns the floor of an epoch: a snapshot about half as far back as rows are kept."""
        at = self._snapshot_before(epoch)
        if at == 0:
            return Floor()
        landed = at * synthetic_lake.EPOCH_ROWS // QUEUES
        return Floor(at, dict.fromkeys(range(QUEUES), landed), self._snapshot_before(at))

    def _snapshot_before(self, epoch: int) -> int:
        newest = epoch // SNAPSHOT_EPOCHS * SNAPSHOT_EPOCHS
        wanted = newest - self.kept // 2 + SNAPSHOT_EPOCHS // 2
        return max(0, wanted // SNAPSHOT_EPOCHS * SNAPSHOT_EPOCHS)


def limits_of(age: Age) -> MaintenanceLimits:
    """Returns the defaults of the settings, with a retention of half of what is kept."""
    retention_ms = age.kept // 2 * EPOCH_MS
    return MaintenanceLimits(16, 32 << 20, 32, 600_000, _HOUR_MS, 604_800_000, retention_ms)


def make(path: str, age: Age) -> Lake:
    """Write the lake."""
    lake = Lake(path, is_driver=True)
    lake.create(instant(START_MS))
    lake.create_table(_ORDERS)
    before = age.first_written - 1
    a_queue = before * synthetic_lake.EPOCH_ROWS // QUEUES
    deleted = {} if before == 0 else _grow_old(lake, before)
    rows = SyntheticRows(lake, 1, deleted)
    rows.add("catalog", 1, topic=["orders"], table_id=[1], queue_count=[QUEUES],
             epoch=[before + 1], created_at=[instant(START_MS)])  # fmt: skip
    op_next, real_next = [a_queue] * QUEUES, [a_queue] * QUEUES
    limits = limits_of(age)
    maintenance = Maintenance(lake, limits)
    for epoch in range(before + 1, age.newest + 1):
        synthetic_lake.add_epoch(rows, epoch, op_next, real_next, age.floor_at(epoch))
        rows.end_epoch(epoch, is_last=True)
        if epoch % limits.merge_files == 0:
            _let_time_pass(path, limits.merge_files * EPOCH_MS)
            plan = read_progress(lake).last
            assert plan is not None
            maintenance.take_up(plan)
            for table in maintenance.tables():
                deque(maintenance.steps(table), maxlen=0)
    return lake


def _grow_old(lake: Lake, epochs: int) -> dict[str, int]:
    """Let the tables look as after so many epochs, with all rows deleted. Output: rows by table."""
    rows = synthetic_lake.EPOCH_ROWS * epochs
    deleted = {}
    for table in (*TABLES, _ORDERS):
        if table in ("lake", "catalog"):
            continue
        is_epochs = table == "epochs"
        deleted[table] = 2 * epochs if is_epochs else rows
        said = {
            f"txlake/{lake.majority_lake_id()}": 2 * epochs + 1 if is_epochs else epochs,
            deleted_id(lake.majority_lake_id()): deleted[table],
        }
        handle = lake.handle(table)
        properties = CommitProperties(app_transactions=[Transaction(*one) for one in said.items()])
        handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)
        lake.table(table).invalidate()
        commits = 2 * epochs if is_epochs else epochs
        _renumber(lake, table, int(commits * _COMMITS_AN_EPOCH))
    return deleted


def _renumber(lake: Lake, table: str, version: int) -> None:
    """Let a table's log begin with its newest version, under another number."""
    handle = lake.handle(table)
    handle.create_checkpoint()
    newest = f"{handle.version():020d}."
    for entry in (Path(lake.table_path(table)) / "_delta_log").iterdir():
        if entry.name == "_last_checkpoint":
            entry.write_text(json.dumps({**json.loads(entry.read_text()), "version": version}))
        elif entry.name.startswith(newest):
            entry.rename(entry.with_name(f"{version:020d}.{entry.name.removeprefix(newest)}"))
        elif entry.is_file():
            entry.unlink()
    lake.reset(table)


def _let_time_pass(path: str, ms: int) -> None:
    """Let the entries of all logs be so much older: maintenance cuts logs by the files' times."""
    for log in Path(path).glob("**/_delta_log"):
        for entry in log.iterdir():
            at = entry.stat().st_mtime - ms / 1000
            os.utime(entry, (at, at))
