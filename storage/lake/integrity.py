"""The check, before a lake is used, that its tables hold all committed rows, by their logs.

The committed rows of `epochs` record the version that each table had reached, and how many rows it
held. The table's own log says how many of them were deleted below the floor.

A lake is refused if a table is missing, is at an older version, holds more or fewer rows, has lost
a file, or belongs to another lake, or if the digest of a row of `epochs` does not fit. Then another
program than the job has changed it.

A reader beside a running job reads the rows of `epochs` first: the tables are then ahead of them,
never behind. Maintenance can look like damage for a moment, so a reader checks again before it
refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from storage.errors import RESTORE_HINT, BrokenLakeError, MissingTableError
from storage.lake.chain import chain_order, digest_of
from storage.lake.committed_tables import CommittedTables, read_committed_tables
from storage.lake.datasets import dataset_of
from storage.lake.epochs import TableVersion
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS, Progress, read_progress
from storage.lake.table import deleted_rows
from storage.schemas import TABLES
from txlake._committed import CHECK_PAUSE_S, CHECK_TRIES, count_committed, lost_file
from txlake._counted import counted
from txlake._delta_log import files_of_table, lake_id_of

_NO_VERSION = TableVersion(0, 0)  # of a table that no committed row names


@dataclass(frozen=True)
class Fault:
    """A fault of one table.

    `problem`: the predicate of a sentence about the table. `epoch`, `state`: the row of `epochs`
    that is wrong, if one is. `is_unplanned`: the table has rows of an epoch that is not planned.
    """

    table: str
    problem: str
    epoch: int | None = None
    state: str | None = None
    is_unplanned: bool = False


def require_intact(lake: Lake, progress: Progress, *, is_exclusive: bool = False) -> None:
    """Checks that a lake is whole.

    Input: where its epochs stand; `is_exclusive`: nobody writes the lake, so its tables hold
    exactly what was committed.
    Errors: BrokenLakeError that names the first faulty table, its fault, and the way back.
    """
    _refuse(lake, find_faults(lake, progress, is_exclusive=is_exclusive))


def require_recorded(lake: Lake, tables: Iterable[str] | None = None) -> Progress:
    """Checks, beside a job, that a lake is whole and its newest epochs are a chain.

    Input: which tables (None: all). Output: where its epochs stand.
    Errors: BrokenLakeError.
    """
    names = None if tables is None else tuple(tables)
    progress = NO_PROGRESS

    def find() -> list[Fault]:
        nonlocal progress
        progress = read_progress(lake)

        return find_faults(lake, progress, names)

    _refuse(lake, retry_while_written(lake, find))
    return progress


def require_readable(lake: Lake, tables: Iterable[str] = TABLES) -> None:
    """Checks, beside a job, that some tables hold all committed rows.

    Reads few columns of `epochs`, back to the newest row that names all tables. A topic's table has
    to be there once a committed epoch has written it.
    Errors: BrokenLakeError.
    """
    names = tuple(tables)

    def find() -> list[Fault]:
        expected = read_committed_tables(lake)
        checked = [name for name in names if name in TABLES or name in expected.tables]

        return _table_faults(lake, expected, checked)

    _refuse(lake, retry_while_written(lake, find))


def require_usable(lake: Lake) -> None:
    """Checks, beside a job, that this is a lake of this version and holds all committed rows.

    The tables of topics are not checked.
    Errors: as `Lake.lake_id`; BrokenLakeError.
    """
    lake.lake_id()
    require_readable(lake)


def require_resumable(lake: Lake, progress: Progress) -> None:
    """Checks the lake of an interrupted rebuild: its tables can be ahead of its epochs.

    Errors: BrokenLakeError.
    """
    faults = find_faults(lake, progress)
    _refuse(lake, [fault for fault in faults if fault.table != "lake" and not fault.is_unplanned])


def retry_while_written(lake: Lake, find: Callable[[], list[Fault]]) -> list[Fault]:
    """Returns the faults that `find` returns; none if one of several calls returns none.

    Errors: BrokenLakeError if the last call of `find` raises it.
    """
    for _ in range(CHECK_TRIES - 1):
        try:
            if not find():
                return []
        except BrokenLakeError:
            pass

        time.sleep(CHECK_PAUSE_S)
        lake.reset()

    return find()


def _refuse(lake: Lake, faults: list[Fault]) -> None:
    for fault in faults:
        raise BrokenLakeError(
            f"the lake {lake.path} is not whole: the table {fault.table} {fault.problem}; "
            f"{RESTORE_HINT}"
        )


def find_faults(
    lake: Lake,
    progress: Progress,
    tables: Iterable[str] | None = None,
    *,
    is_exclusive: bool = False,
) -> list[Fault]:
    """Returns what is wrong, table by table; an empty list when the lake is whole."""
    expected = CommittedTables.from_progress(progress)
    faults = _chain_faults(lake, progress)

    unreadable: list[Fault] = []
    if tables is None:
        tables, unreadable = _all_tables(lake, expected)

    faults += _table_faults(lake, expected, tables, is_exclusive=is_exclusive)

    faulty = {fault.table for fault in faults}
    return faults + [fault for fault in unreadable if fault.table not in faulty]


def _table_faults(
    lake: Lake, expected: CommittedTables, tables: Iterable[str], *, is_exclusive: bool = False
) -> list[Fault]:
    faults = []
    newest_epochs = {}

    for table in ["epochs", *sorted(set(tables) - {"epochs"})]:
        try:
            problem, newest_epochs[table] = _problem(lake, table, expected, is_exclusive)
        except MissingTableError:
            version = expected.tables.get(table, _NO_VERSION).version
            problem = (
                f"is missing; its version was {version} when epoch {expected.committed} committed"
            )
        except BrokenLakeError as error:
            problem = error.problem

        if problem is not None:
            faults.append(Fault(table, problem))

    if any(fault.table == "epochs" for fault in faults):
        return faults
    return faults + _unplanned_rows(lake, newest_epochs, expected.planned if is_exclusive else None)


def _problem(
    lake: Lake, table: str, expected: CommittedTables, is_exclusive: bool
) -> tuple[str | None, int]:
    """Returns the problem of a table, None if it has none, and the newest epoch of its rows.

    That epoch is 0 for a table that has a problem before its rows are counted, for `lake`, and for
    `epochs`, which plans itself.
    """
    handle = lake.handle(table)

    own_id = lake_id_of(handle)
    lake_id = lake.majority_lake_id()
    if own_id != lake_id:
        return f"belongs to another lake ({own_id or 'unnamed'}, not {lake_id})", 0

    at = expected.tables.get(table, _NO_VERSION)
    since = f"when epoch {expected.committed} committed"
    if handle.version() < at.version:
        return f"is at version {handle.version()}, and was at {at.version} {since}", 0

    files = lake.table(table).files(handle)

    foreign = _foreign_file(lake, table, files)
    if foreign is not None:
        return f"names {foreign}, which is no file in its own folder", 0

    missing = _missing_file(lake, table, files)
    if missing is not None:
        return f"has lost its file {missing}", 0

    if table == "lake":
        return None if files.num_rows else "is empty", 0
    if table == "epochs":
        return _epochs_problem(lake, handle, files, expected), 0

    row_count, newest = _count_committed(lake, table, files, expected.committed)
    row_count += deleted_rows(handle)

    if row_count < at.rows or (is_exclusive and row_count != at.rows):
        return f"holds {counted(row_count, 'row')}, and held {at.rows} {since}", newest
    return None, newest


def _epochs_problem(
    lake: Lake, handle: DeltaTable, files: pa.Table, expected: CommittedTables
) -> str | None:
    """Returns what is wrong with `epochs`: each epoch has two rows, present or deleted."""
    if not files.num_rows and handle.version() > 0:
        return f"is empty, at version {handle.version()}"

    row_count, _ = _count_committed(lake, "epochs", files, expected.planned)
    written = expected.planned + expected.committed
    deleted = deleted_rows(handle)

    # While no row is deleted, a missing epoch shows as a gap.
    if deleted and row_count + deleted < written:
        return f"holds {counted(row_count, 'row')}, and {written - deleted} should be left"
    return None


def _count_committed(lake: Lake, table: str, files: pa.Table, committed: int) -> tuple[int, int]:
    """Returns how many rows of committed epochs a table holds, and the newest epoch of any row."""

    def read_epochs(unsure: pa.Table) -> pa.ChunkedArray:
        with lake.translating_read_errors(table):
            dataset = dataset_of(lake.location, table, unsure, lake.schema(table))
            return dataset.to_table(columns=["epoch"])["epoch"]

    return count_committed(files, committed, read_epochs)


def _unplanned_rows(
    lake: Lake, newest_epochs: Mapping[str, int], planned: int | None
) -> list[Fault]:
    """Returns tables with rows of an epoch that is not planned: its plan is written before them.

    Input: `newest_epochs`: of the rows of each table; `planned`: the newest planned epoch; None: it
    is read now, after the tables.
    """
    if planned is None:
        planned = lake.max_value("epochs", "epoch") or 0

    return [
        Fault(
            table,
            f"has rows of epoch {epoch}, and the newest planned is {planned}",
            is_unplanned=True,
        )
        for table, epoch in newest_epochs.items()
        if epoch > planned
    ]


def _all_tables(lake: Lake, expected: CommittedTables) -> tuple[list[str], list[Fault]]:
    """Returns the names of all tables of a lake; those of topics are in the catalog.

    Output: also the fault of the catalog, if it cannot be read.
    """
    names = {*TABLES, *expected.tables}

    try:
        is_committed = pc.field("epoch") <= expected.committed
        ids = lake.read("catalog", ["table_id"], is_committed)["table_id"].to_pylist()
    except BrokenLakeError as error:
        return sorted(names), [Fault("catalog", error.problem)]

    return sorted(names | {f"topics/{table_id}" for table_id in ids}), []


def _foreign_file(lake: Lake, table: str, files: pa.Table) -> str | None:
    """Returns a file of a table's log that lies elsewhere or behind a link: it is not the job's."""
    names = files["path"].to_pylist() if files.num_rows else []
    folder = lake.location.table_path(table) if lake.location.is_local else None

    own_names = set(files_of_table(names, folder))
    return next((name for name in names if name not in own_names), None)


def _missing_file(lake: Lake, table: str, files: pa.Table) -> str | None:
    """Returns a file of a table's log that is missing in its folder, or has another size."""
    with lake.translating_read_errors(table):
        return lost_file(files, lake.location.filesystem(table))


def _chain_faults(lake: Lake, progress: Progress) -> list[Fault]:
    """Returns the faults of the digests since the newest row that names all tables."""
    first = max(1, progress.full_epoch or 1)
    where = (pc.field("epoch") >= first) & (pc.field("epoch") <= progress.newest_epoch)
    rows = lake.read("epochs", where=where).to_pylist()

    return chain_faults(rows, lake.majority_lake_id() if first == 1 else None)


def chain_faults(rows: list[dict[str, Any]], previous: str | None) -> list[Fault]:
    """Returns the rows of `epochs` whose digest does not follow from the row before.

    Input: rows of epochs without a gap; the digest of the row before the first of them, None if it
    is not known.
    """
    faults = []
    for row in chain_order(rows):
        if previous is not None and row["digest"] != digest_of(row, previous):
            problem = (
                f"has a {row['state']} row of epoch {row['epoch']} that was changed, or whose "
                "row before was changed or removed: its digest does not fit"
            )
            faults.append(Fault("epochs", problem, row["epoch"], row["state"]))

        previous = row["digest"]

    return faults
