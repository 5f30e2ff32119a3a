"""The lake: its folder, its tables, and the one way in which rows are added to them.

Rows that the driver has in memory are added by `append`, files that tasks have written by
`add_files`. A driver commits them in 1 ms, delta-rs in 12, Spark in 200 (DECISIONS.md 2). Every
append belongs to one epoch and happens once (`LakeTable.commit_once`).
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError

from storage.errors import LakeError
from storage.files.data_files import GROUP_ROWS, DataFile, new_name, require_visible, write_file
from storage.files.location import LakeLocation, lake_location
from storage.files.messages import read_named
from storage.files.order import in_file_order, table_kind
from storage.files.row_groups import FooterCache
from storage.files.small_file_cache import SmallFileCache
from storage.lake.epochs import COMMITTED
from storage.lake.identity import choose_lake_id, identity, lake_row, require_empty
from storage.lake.open_table import translating_read_errors
from storage.lake.row_counts import RowCounts
from storage.lake.store_probe import StoreProbe
from storage.lake.table import LakeTable, NewFiles
from storage.schemas import TABLES, TOPIC
from storage.wire.record_kinds import SCHEDULE
from txlake._disk import require_room

_MESSAGES = {
    kind: WriterProperties(max_row_group_size=rows, compression="SNAPPY")
    for kind, rows in GROUP_ROWS.items()
}
_OTHERS = WriterProperties(compression="SNAPPY")
# Upkeep of a log lists its folder at every commit; maintenance does it between epochs.
NO_LOG_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Lake:
    """One lake. Two threads do not write to the same table.

    Input: a folder, or a location in an object store; `is_driver`: this process alone writes it,
    and its maintenance makes the checkpoints of the logs, not each append.
    """

    def __init__(self, location: str | LakeLocation, *, is_driver: bool = False) -> None:
        self.location = lake_location(location)
        self.path = self.location.path
        self._is_driver = is_driver
        self.opened = FooterCache()
        self._file_cache = (
            SmallFileCache(self.location) if is_driver and not self.location.is_local else None
        )

        self.row_counts = RowCounts(
            lambda table: self.table(table).version(), lambda table: self.table(table).rows()
        )

        self._upkeep = NO_LOG_UPKEEP if is_driver else None
        self._tables: dict[str, LakeTable] = {}
        self._majority_lake_id = ""
        self._probe = StoreProbe(self.location)

    def table_path(self, table: str) -> str:
        """Returns a table's folder; `topics/<table_id>` names a topic's table."""
        return self.location.table_path(table)

    @staticmethod
    def schema(table: str) -> pa.Schema:
        """Returns a table's Arrow schema."""
        return TOPIC if table.startswith("topics/") else TABLES[table]

    def is_table(self, table: str) -> bool:
        """Returns whether there is such a table. Errors: as `translating_read_errors`."""
        with translating_read_errors(self.location, table):
            return bool(
                DeltaTable.is_deltatable(self.table_path(table), self.location.storage_options)
            )

    def table(self, table: str) -> LakeTable:
        """Returns a table, the same object every time."""
        return self._tables.get(table) or self._tables.setdefault(table, self._open(table))

    def _open(self, table: str) -> LakeTable:
        return LakeTable(
            self.location,
            table,
            self.majority_lake_id,
            is_driver=self._is_driver,
            file_cache=self._file_cache,
        )

    def exists(self) -> bool:
        """Returns whether there is a lake at this path: one has its row in the table `lake`."""
        return self.is_table("lake") and bool(self.read("lake").num_rows)

    def create(self, now: dt.datetime) -> str:
        """Makes the lake, or finishes one half made. Output: its id.

        An existing lake stays as it is: a table that is missing there was lost.
        Replay: makes the missing tables; the `lake` row is written last and once.
        Errors: as `lake_id`; UnfinishedLakeError for what a rebuild has begun; LakeError if
        the folder cannot be made.
        """
        if not self.exists():
            require_empty(self)
            self.create_tables()
            self.append("lake", lake_row(self.majority_lake_id(), now))

        return self.lake_id()

    def check(self) -> None:
        """Checks that this version can use the lake, or make one here, and that its store can.

        Errors: as `lake_id`, but NotALakeError; StoreRefusedError; StoreAwayError: try again.
        """
        if self.exists():
            self.lake_id()
        else:
            require_empty(self)

        if not self.location.is_local:
            self._probe.require_conditional_put()

    def lake_id(self) -> str:
        """Returns the lake's id after checking that this version can use it.

        Errors: NotALakeError, UnfinishedLakeError, NewerLakeError, OlderLakeError.
        """
        return identity(self)[0]

    def majority_lake_id(self) -> str:
        """Returns the id of the lake that most tables belong to; a new one if no table says."""
        self._majority_lake_id = self._majority_lake_id or choose_lake_id(self)
        return self._majority_lake_id

    def table_lake_id(self, table: str) -> str:
        """Returns the id of the lake that a table belongs to; empty if it cannot be read."""
        return self.table(table).lake_id()

    def create_tables(self) -> None:
        """Makes the tables that are missing, `lake` as the last.

        Errors: LakeError if the folder cannot be made.
        """
        for table in sorted(TABLES, key="lake".__eq__):
            try:
                self.create_table(table)
            except (OSError, DeltaError) as error:
                reason = str(error).strip().splitlines()[0]
                raise LakeError(f"the lake {self.path} cannot be made: {reason}") from error

    def create_table(self, table: str) -> None:
        """Makes one table if it is missing."""
        self.table(table).create(self.schema(table))

    def handle(self, table: str) -> DeltaTable:
        """Returns the table at its newest version. Errors: MissingTableError, BrokenLakeError."""
        return self.table(table).handle()

    def translating_read_errors(self, table: str) -> AbstractContextManager[None]:
        """Returns a block in which an error becomes one sentence that names the table.

        Errors: BrokenLakeError; MissingTableError for a table that is not there.
        """
        return self.table(table).translating_read_errors()

    def dataset(self, table: str) -> ds.Dataset:
        """Returns the table's newest version as an Arrow dataset."""
        return self.table(table).dataset()

    def read(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Reads a table's newest version; files that statistics rule out are not opened."""
        with self.translating_read_errors(table):
            rows = self.dataset(table).to_table(
                columns=list(columns) if columns else None, filter=where
            )
            rows.validate(full=True)  # else text that is not UTF-8 would be found much later
            return rows

    def read_named(
        self, table: str, keys: pa.Table, columns: Sequence[str], before_epoch: int
    ) -> pa.Table:
        """Reads the rows of earlier epochs that have one of these row keys.

        Input: `keys`: queue_id, queue_offset, which `columns` include.
        """
        with self.translating_read_errors(table):
            return read_named(self, table, keys, columns, before_epoch, self.opened)

    def max_value(self, table: str, column: str) -> Any:
        """Returns the largest value of a column by the statistics of the log, without reading."""
        return self.table(table).max_value(column)

    def has_epoch(self, table: str, epoch: int) -> bool:
        """Returns whether the rows of an epoch, or of a later one, were committed to a table."""
        return self.table(table).transaction() >= epoch

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        """Adds rows to a table in one Delta commit; without rows it does nothing.

        Input: the epoch that they belong to, if any; `epochs` takes one commit for each state.
        Output: rows added; 0 if the table holds the epoch already.
        """
        if rows.num_rows == 0:
            return 0

        is_committed = self._commit(table, rows, epoch)
        return self._count_rows(table, rows.num_rows, is_committed)

    def add_files(self, table: str, files: Sequence[DataFile], epoch: int) -> int:
        """Adds the files of an epoch to a table in one Delta commit; without files it does nothing.

        Output: rows added; 0 if the table holds the epoch already.
        Errors: LakeError when a file is gone.
        """
        if not files:
            return 0

        def visible_files() -> Sequence[DataFile]:
            # A store shows at once what it has taken.
            if table_kind(table) != "topics" or self.location.is_local:
                require_visible(self.location, table, files)
            return files

        rows = sum(file.rows for file in files)
        is_committed = _commit_files(self.table(table), visible_files, epoch, None, self._upkeep)

        return self._count_rows(table, rows, is_committed)

    def _count_rows(self, table: str, rows: int, is_committed: bool) -> int:
        """Counts rows that were to be committed. Output: how many were."""
        if not is_committed:
            self.row_counts.invalidate(table)
            return 0

        self.row_counts.add(table, rows)
        return rows

    def _commit(self, table: str, rows: pa.Table, epoch: int | None) -> bool:
        """Commits rows, those of an epoch once. Output: whether they were committed here."""
        if table == SCHEDULE:  # rows of other tables come in their order already
            rows = in_file_order(table, rows)

        if self.location.is_local:
            require_room(self.table_path(table), rows.nbytes)

        def write(handle: DeltaTable, properties: CommitProperties | None) -> None:
            append_rows(handle, table, rows, properties, self._upkeep)

        if table == "lake":  # a row of no epoch; a rebuild takes it away and writes another
            return self.table(table).commit_once(0, write, self.table(table).transaction() + 1)

        if epoch is None:
            write(self.handle(table), None)
            return True

        transaction = transaction_of(table, rows, epoch)
        if not self.table(table).has_entries:
            return self.table(table).commit_once(epoch, write, transaction)

        # The file is written once, when it is first needed.
        files = functools.cache(lambda: [write_file(self.location, table, new_name(epoch), rows)])
        return _commit_files(self.table(table), files, epoch, transaction, self._upkeep)

    def reset(self, table: str | None = None) -> None:
        """Drops the handle of a table, or of all, so that the next use reads the log anew."""
        if table is not None:
            self.table(table).reset()
            return

        for opened in tuple(self._tables.values()):
            opened.reset()
        self.row_counts.invalidate_all()


def transaction_of(table: str, rows: pa.Table, epoch: int) -> int:
    """Returns the Delta transaction that commits rows up to an epoch to a table."""
    if table == "epochs":  # it has two commits an epoch
        return 2 * epoch + int(rows["state"][-1].as_py() == COMMITTED)
    return epoch


def append_rows(
    handle: DeltaTable,
    table: str,
    rows: pa.Table | pa.RecordBatchReader,
    properties: CommitProperties | None,
    upkeep: PostCommitHookProperties | None = None,
) -> None:
    """Commits rows of a table through a handle of it."""
    write_deltalake(
        handle,
        rows,
        mode="append",
        commit_properties=properties,
        writer_properties=_MESSAGES.get(table_kind(table), _OTHERS),
        post_commithook_properties=upkeep,
    )


def _commit_files(
    table: LakeTable,
    files: NewFiles,
    epoch: int,
    transaction: int | None,
    upkeep: PostCommitHookProperties | None,
) -> bool:
    """Commits files of an epoch once. Output: whether they were committed here."""

    def write(handle: DeltaTable, properties: CommitProperties) -> None:
        handle.create_write_transaction(
            [file.add_action() for file in files()],
            "append",
            handle.schema(),
            commit_properties=properties,
            post_commithook_properties=upkeep,
        )

    return table.commit_once(epoch, write, transaction, files)
