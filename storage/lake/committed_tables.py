"""What the rows of `epochs` tell of the tables: which version each had reached, with how many rows.

A committed row names the tables that its epoch wrote, one in so many names all. So the newest rows
back to that tell of every table, and the newest one that names it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import RESTORE_HINT, BrokenLakeError
from storage.lake.epochs import COMMITTED, NAMED_EPOCHS_MAX, PLANNED, Progress, TableVersion
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.lake.table import deleted_rows
from storage.schemas import SNAPSHOT

_COLUMNS = ["epoch", "state", "counts", "tables"]


@dataclass(frozen=True)
class CommittedTables:
    """What the epochs tell: the newest committed and planned one, and each table by name."""

    committed: int
    planned: int
    tables: Mapping[str, TableVersion]

    @classmethod
    def by(cls, progress: Progress) -> CommittedTables:
        """Returns the same from where the epochs stand."""
        return cls(progress.next_epoch - 1, progress.newest_epoch, progress.tables)


def read_committed_tables(lake: Lake) -> CommittedTables:
    """Returns what the newest rows tell, from few columns of them: 20 ms, whatever the lake's size.

    Errors: BrokenLakeError when one of the rows is missing.
    """
    newest = lake.max_value("epochs", "epoch")
    if newest is None:
        return CommittedTables(0, 0, {})
    bounds: Bounds = {"epoch": (newest - NAMED_EPOCHS_MAX, newest)}
    rows = read_rows(lake, "epochs", _COLUMNS, bounds)
    is_cut = deleted_rows(lake.handle("epochs")) > 0
    _check_gapless(lake, rows, newest, pc.min(rows["epoch"]).as_py() if is_cut else 1)
    commits = rows.filter(pc.equal(rows["state"], COMMITTED)).sort_by("epoch")
    naming = commits.filter(pc.is_valid(pc.map_lookup(commits["counts"], SNAPSHOT, "first")))
    if naming.num_rows:
        commits = commits.filter(pc.greater_equal(commits["epoch"], pc.max(naming["epoch"])))
    elif newest > NAMED_EPOCHS_MAX:  # no row of a backfill from files names all
        earlier: Bounds = {"epoch": (None, newest - NAMED_EPOCHS_MAX - 1), "state": [COMMITTED]}
        before = read_rows(lake, "epochs", _COLUMNS, earlier).sort_by("epoch")
        commits = pa.concat_tables([before, commits])
    return CommittedTables(pc.max(commits["epoch"]).as_py() or 0, newest, _tables(commits))


def _tables(commits: pa.Table) -> dict[str, TableVersion]:
    """Returns what the last row that names a table tells of it, for each table."""
    entries = pc.list_flatten(commits["tables"])
    names, versions, rows = (
        pc.struct_field(entries, name).to_pylist() for name in ("table", "version", "rows")
    )
    return {name: TableVersion(*at) for name, *at in zip(names, versions, rows, strict=True)}


def _check_gapless(lake: Lake, rows: pa.Table, newest: int, first: int) -> None:
    """Checks that each of the newest epochs has its rows; only the last may be uncommitted.

    Input: the first epoch that is not deleted.
    """
    epochs = np.arange(max(first, newest - NAMED_EPOCHS_MAX), newest + 1)
    for state, wanted in ((PLANNED, epochs), (COMMITTED, epochs[:-1])):
        there = rows["epoch"].filter(pc.equal(rows["state"], state)).to_numpy()
        lacking = np.setdiff1d(wanted, there)
        if len(lacking):
            problem = f"has no {state} row of epoch {lacking[0]}"
            raise BrokenLakeError(
                f"the table epochs of the lake {lake.path} {problem}; {RESTORE_HINT}", problem
            )
