"""Check by the logs, before a table is used, that it holds all committed rows.

From lake format 2 on every committed row of `epochs` names the tables that its epoch wrote, each
with the version that it had reached and the rows that it held. Every table names its lake.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from txlake._committed import (
    CHECK_PAUSE_S,
    CHECK_TRIES,
    COLUMNS,
    NAMED_EPOCHS_MAX,
    count_committed,
    named_tables,
    since_full_row,
)
from txlake._counted import counted
from txlake._delta_files import STALE_SNAPSHOT, DeltaFiles, first_line
from txlake._delta_log import lake_id_of
from txlake._store import store_error
from txlake.errors import LakeError
from txlake.protocol import deleted_id


class TableChecks:
    """The tables of one lake, checked. While a job writes they can be ahead, never behind."""

    def __init__(self, path: str, lake_id: str, storage_options: Mapping[str, str]) -> None:
        self._path = path
        self._lake_id = lake_id
        self._storage_options = storage_options

    def require(self, tables: Mapping[str, int]) -> None:
        """Checks tables; if something looks wrong, it checks again before it refuses.

        Input: by table, the epoch that made it: until that is committed the table can be missing.
        Errors: LakeError, one sentence that names the table, its state now and when it committed.
        """
        problems: dict[str, str] = {}

        for attempt in range(CHECK_TRIES):
            if attempt:
                time.sleep(CHECK_PAUSE_S)
                tables = {table: tables[table] for table in problems}

            problems = self._problems(tables)
            if not problems:
                return

        raise LakeError(
            f"{self._path}: the lake is not whole: {next(iter(problems.values()))}; put it back "
            "from a copy, or `txlake verify` says what else is wrong"
        )

    def _problems(self, tables: Mapping[str, int]) -> dict[str, str]:
        """Returns what is wrong, by table. The epochs are read once, before all tables."""
        try:
            epochs = self._open("epochs")
            problem = self._epochs_problem(epochs)
            committed, named = _read_committed(epochs) if problem is None else (0, {})
        except STALE_SNAPSHOT as error:
            problem = self._unreadable(error)

        if problem is not None:
            return dict.fromkeys(tables, f"the table epochs {problem}")

        problems = {}
        for table, since_epoch in tables.items():
            may_be_missing = table not in named and since_epoch > committed
            at_commit = named.get(table, (0, 0))

            try:
                problem = self._table_problem(
                    table, epochs, committed, at_commit, may_be_missing=may_be_missing
                )
            except STALE_SNAPSHOT as error:
                problem = self._unreadable(error)
            if problem is not None:
                problems[table] = f"the table {table} {problem}"

        return problems

    def _unreadable(self, error: Exception) -> str:
        """Returns what is wrong with a table that cannot be read. Errors: StoreAwayError."""
        translated = store_error(self._path, self._path, error)
        if translated is not None:
            raise translated from error
        return f"cannot be read: {first_line(error)}"

    def _open(self, table: str) -> DeltaFiles:
        files = DeltaFiles(f"{self._path}/{table}", self._storage_options, ("epoch",))
        files.refresh()
        return files

    def _epochs_problem(self, epochs: DeltaFiles) -> str | None:
        if not epochs.exists:
            return "is missing"
        if not epochs.files and epochs.version > 0:
            return f"is empty, at version {epochs.version}"
        return self._owner_problem(epochs) or _file_problem(epochs)

    def _table_problem(
        self,
        table: str,
        epochs: DeltaFiles,
        committed: int,
        at_commit: tuple[int, int],
        *,
        may_be_missing: bool,
    ) -> str | None:
        """Returns what is wrong with a table, if anything is.

        Input: its version and its number of rows when epoch `committed` committed.
        """
        version, rows = at_commit
        when = f"when epoch {committed} committed"

        files = self._open(table)
        if not files.exists:
            return None if may_be_missing else f"is missing; its version was {version} {when}"

        problem = self._owner_problem(files)
        if problem is None and files.version < version:
            problem = f"is at version {files.version}, and was at {version} {when}"
        problem = problem or _file_problem(files)
        if problem is not None:
            return problem

        row_count, newest = _count_committed(files, committed)
        if row_count < rows:  # delta-rs is slow to say how many were deleted
            row_count += files.table.transaction_version(deleted_id(self._lake_id)) or 0
        if row_count < rows:
            return f"holds {counted(row_count, 'row')}, and held {rows} {when}"

        if newest > _newest(epochs):  # the job may have planned it meanwhile
            epochs.refresh()
        planned = _newest(epochs)
        if newest > planned:
            return f"has rows of epoch {newest}, and the newest in epochs is {planned}"
        return None

    def _owner_problem(self, files: DeltaFiles) -> str | None:
        lake_id = lake_id_of(files.table)
        if lake_id == self._lake_id:
            return None
        return f"belongs to lake {lake_id or '(unnamed)'}, and the table lake says {self._lake_id}"


def _file_problem(files: DeltaFiles) -> str | None:
    missing = files.missing_file()
    return None if missing is None else f"has lost its file {missing}"


def _newest(files: DeltaFiles) -> int:
    return max((file.max_values["epoch"] or 0 for file in files.files.values()), default=0)


def _read_committed(epochs: DeltaFiles) -> tuple[int, dict[str, tuple[int, int]]]:
    """Reads the newest committed rows, back to one that names all tables.

    Output: the newest committed epoch; each table's version and rows.
    """
    first = _newest(epochs) - NAMED_EPOCHS_MAX
    rows = _commits(epochs, pc.field("epoch") >= first)
    since_full = since_full_row(rows)

    if since_full is not None:
        rows = since_full
    elif first > 1:  # no row of a backfill from files names all
        rows = pa.concat_tables([_commits(epochs, pc.field("epoch") < first), rows])

    return pc.max(rows["epoch"]).as_py() or 0, named_tables(rows)


def _commits(epochs: DeltaFiles, within: pc.Expression) -> pa.Table:
    """Returns committed rows, the oldest first."""
    where = within & (pc.field("state") == "committed")
    return epochs.dataset(epochs.files).to_table(list(COLUMNS), filter=where).sort_by("epoch")


def _count_committed(files: DeltaFiles, committed: int) -> tuple[int, int]:
    """Returns how many rows of committed epochs a table has, and its newest epoch."""

    def read_epochs(unsure: pa.Table) -> pa.ChunkedArray:
        return files.dataset(unsure["path"].to_pylist()).to_table(["epoch"])["epoch"]

    return count_committed(files.as_table(), committed, read_epochs)
