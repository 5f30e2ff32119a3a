"""The lake: its folders, its tables, and the one way in which rows are added to them.

delta-rs commits: rows that the driver has at hand (`append`), and files that tasks or the driver
have written (`add_files`); 5 ms a commit, where Spark takes 200 (DECISIONS.md 2). Every append
belongs to one epoch and happens once: its commit carries a Delta transaction identifier
(`txlake/<lake id>`, the epoch), so that of two drivers that write one epoch only one does, whatever
the store. Source: Delta's protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from storage.data_files import GROUP_ROWS, STATISTICS, DataFile, LakePlace
from storage.epochs import COMMITTED, TableAt
from storage.errors import (
    WAY_BACK,
    BrokenLakeError,
    LakeError,
    MissingTableError,
    NewerLakeError,
    NotALakeError,
    OlderLakeError,
    UnfinishedLakeError,
)
from storage.file_order import in_file_order, kind_of
from storage.kafka_rows import SCHEDULE
from storage.opening import checked_path, read_checkpoint
from storage.row_groups import OpenedFiles
from storage.schemas import FORMAT_VERSION, TABLES, TOPIC

_MESSAGES = {
    kind: WriterProperties(max_row_group_size=rows, compression="SNAPPY")
    for kind, rows in GROUP_ROWS.items()
}
_OTHERS = WriterProperties(compression="SNAPPY")
LAKE_ID_PROPERTY = "txlake.lakeId"  # of every table: which lake it belongs to
_CHECKPOINT_INTERVAL = "100"  # about 100: each start replays at most this many log files
# Looking after the log lists its folder, at every commit; maintenance does it between epochs.
# How long a file that a task wrote may take to be seen here, as over NFS.
VISIBLE_S = 10.0
_LOOK_S = 0.1
_COMMIT_TRIES = 20  # a commit is refused when another changed the table, as maintenance does
NO_LOG_UPKEEP = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Lake:
    """One lake. Not shared between threads for writing to the same table.

    Input: path: a folder; `storage_options` go to delta-rs as they are; `is_maintained`:
    somebody else makes the checkpoints of the logs, so appends need not.
    """

    def __init__(
        self,
        path: str,
        storage_options: dict[str, str] | None = None,
        *,
        is_maintained: bool = False,
    ) -> None:
        self.path = checked_path(path)
        self.storage_options = storage_options
        self.place = LakePlace(self.path, storage_options)
        self._tables_id = ""
        self._stock: dict[str, int] = {}
        self._wrote: set[str] = set()
        self._upkeep = NO_LOG_UPKEEP if is_maintained else None
        self._handles: dict[str, DeltaTable] = {}
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._transactions: dict[str, tuple[int, int]] = {}  # table -> Delta version, transaction
        self.opened = OpenedFiles()

    def table_path(self, table: str) -> str:
        """Return a table's place; `topics/<table_id>` names a topic's table."""
        return self.place.table_path(table)

    @staticmethod
    def schema(table: str) -> pa.Schema:
        """Return a table's Arrow schema."""
        return TOPIC if table.startswith("topics/") else TABLES[table]

    def exists(self) -> bool:
        """Return whether there is a lake at this path; one that is half made is none yet."""
        return self.is_table("lake") and bool(self.read("lake").num_rows)

    def create(self, now: dt.datetime) -> str:
        """Make the lake where there is none, finish one half made, and give its id.

        Where there is a lake nothing is made: what is missing there was lost.
        Replay: makes what is missing; the `lake` row is written last and once.
        Errors: as `lake_id`; UnfinishedLakeError for what a rebuild has begun; LakeError where
        the folder cannot be made.
        """
        if not self.exists():
            self.check_not_begun()
            self.create_tables()
            self.append("lake", self.first_row(now))
        return self.lake_id()

    def check(self) -> None:
        """Check that this version can use the lake, or make it where there is none.

        Errors: as `lake_id`, but NotALakeError.
        """
        if self.exists():
            self.lake_id()
        else:
            self.check_not_begun()

    def first_row(self, now: dt.datetime) -> pa.Table:
        """Return the row that makes the tables a lake."""
        row = {
            "lake_id": self.tables_id(),
            "format_version": FORMAT_VERSION,
            "created_at": now,
        }
        return pa.Table.from_pylist([row], schema=TABLES["lake"])

    def create_tables(self) -> None:
        """Make the tables that are missing; it is no lake before it has all of them.

        Errors: LakeError where the folder cannot be made.
        """
        for table in sorted(TABLES, key="lake".__eq__):
            try:
                self.create_table(table)
            except (OSError, DeltaError) as error:
                said = str(error).strip().splitlines()[0]
                raise LakeError(f"the lake {self.path} cannot be made: {said}") from error

    def is_table(self, table: str) -> bool:
        """Return whether there is such a table."""
        return bool(DeltaTable.is_deltatable(self.table_path(table), self.storage_options))

    def tables_id(self) -> str:
        """Return the id of the lake that most tables belong to; a new one where there are none."""
        if not self._tables_id:
            there = filter(self.is_table, TABLES)
            found = Counter(filter(None, map(self.owner, there)))
            self._tables_id = max(found, key=found.__getitem__, default="") or uuid.uuid4().hex
        return self._tables_id

    def owner(self, table: str) -> str:
        try:
            return owner_of(self.handle(table))
        except BrokenLakeError:
            return ""

    def check_not_begun(self) -> None:
        """Check that nothing was written: a rebuild writes the `lake` row when it has ended.

        Errors: UnfinishedLakeError where the row is missing, MissingTableError where the table is:
        a rebuild makes that before any row.
        """
        if not self.is_table("topics/1") and not any(map(self._has_epochs, TABLES)):
            return
        if not self.is_table("lake"):
            raise self._missing("lake")
        raise UnfinishedLakeError(
            f"the table lake of {self.path} has no row, and other tables have: either it is "
            "being rebuilt, or a rebuild was interrupted (run that `txlake replay --into` "
            "again), or the row was lost: name another place, or put the table back from a copy"
        )

    def _has_epochs(self, table: str) -> bool:
        try:
            return table != "lake" and self.last(table, "epoch") is not None
        except MissingTableError:
            return False

    def create_table(self, table: str) -> None:
        """Make one table if it is missing: plain protocol, statistics where they prune."""
        kind = kind_of(table)
        configuration = {
            "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
            LAKE_ID_PROPERTY: self.tables_id(),
        }
        if kind in STATISTICS:
            configuration["delta.dataSkippingStatsColumns"] = STATISTICS[kind]
        DeltaTable.create(
            self.table_path(table),
            self.schema(table),
            mode="ignore",
            configuration=configuration,
            storage_options=self.storage_options,
            raise_if_key_not_exists=False,
        )

    def lake_id(self, formats: Sequence[int] = (FORMAT_VERSION,)) -> str:
        """Return the lake's id after checking that this version can use it.

        Input: the formats that the caller can work with.
        Errors: NotALakeError, UnfinishedLakeError, NewerLakeError, OlderLakeError.
        """
        rows = self.read("lake").to_pylist() if self.is_table("lake") else []
        if not rows:
            self.check_not_begun()
            raise NotALakeError(f"{self.path} is not a lake: `txlake run` makes one there")
        version = rows[0]["format_version"]
        if version > FORMAT_VERSION:
            raise NewerLakeError(
                f"the lake {self.path} has format {version}; this txlake knows formats up to "
                f"{FORMAT_VERSION}: install the newer txlake that made it"
            )
        if version not in formats:
            raise OlderLakeError(
                f"the lake {self.path} has format {version}, this txlake writes format "
                f"{FORMAT_VERSION}: `txlake replay --into NEW --lake {self.path}` makes a lake of "
                "this format from it"
            )
        return str(rows[0]["lake_id"])

    def identity(self, formats: Sequence[int]) -> tuple[str, int]:
        """Return the lake's id and format; where its row is lost, as the other tables have them.

        Input: the formats that the caller can work with. Errors: as `lake_id`.
        """
        try:
            lake_id = self.lake_id(formats)
            return lake_id, self.read("lake", ["format_version"])["format_version"][0].as_py()
        except (BrokenLakeError, UnfinishedLakeError):
            columns = {field.name for field in self.handle("epochs").schema().fields}
            return self.tables_id(), FORMAT_VERSION if "digest" in columns else 1

    def handle(self, table: str) -> DeltaTable:
        """Return the table at its newest version.

        Errors: MissingTableError; BrokenLakeError when its log cannot be read.
        """
        with self._locks[table]:  # nobody refreshes a handle that is being written through
            found = self._handles.get(table)
            if found is not None:
                if self._is_newest(table, found):
                    return found
                try:
                    found.update_incremental()
                    return found
                except DeltaError:  # its log was cleaned up beyond where we stood
                    self._handles.pop(table, None)
            with self.reading(table):
                read_checkpoint(self.table_path(table))
                found = DeltaTable(self.table_path(table), storage_options=self.storage_options)
            self._handles[table] = found
            return found

    def _is_newest(self, table: str, handle: DeltaTable) -> bool:
        """Return whether a table's log has nothing newer, if that can be said without listing it.

        delta-rs lists the folder, which takes 0.6 us an entry on a local disk. Where a clean-up has
        deleted the entry we stand at, the next one may be gone, too.
        """
        path = self.table_path(table)
        if "://" in path:
            return False
        now, log = handle.version(), Path(path) / "_delta_log"
        return (log / f"{now:020}.json").exists() and not (log / f"{now + 1:020}.json").exists()

    @contextmanager
    def reading(self, table: str) -> Iterator[None]:
        """Turn what goes wrong while a table is read into one sentence that names the table.

        Errors: BrokenLakeError; MissingTableError for a table that is not there.
        """
        try:
            yield
        except BrokenLakeError:
            raise
        except TableNotFoundError as error:
            raise self._missing(table) from error
        except (DeltaError, OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise self._unreadable(table, error) from error
        except BaseException as error:  # delta-rs panics over some logs
            if type(error).__name__ != "PanicException":
                raise
            raise self._unreadable(table, error) from None

    def _missing(self, table: str) -> MissingTableError:
        return MissingTableError(
            f"the table {table} of the lake {self.path} is missing; {WAY_BACK}", "is missing"
        )

    def _unreadable(self, table: str, error: BaseException) -> BrokenLakeError:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        problem = f"cannot be read: {said}"
        return BrokenLakeError(
            f"the table {table} of the lake {self.path} {problem}; {WAY_BACK}", problem
        )

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        """Add rows to a table in one Delta commit; no rows, no commit.

        Input: the epoch that they belong to, if any; `epochs` takes one commit for each state.
        Output: rows added; none where the table holds the epoch already.
        """
        if rows.num_rows == 0:
            return 0
        if table == SCHEDULE:  # all others come as they are read
            rows = in_file_order(table, rows)

        def write(handle: DeltaTable, properties: CommitProperties | None) -> None:
            write_deltalake(
                handle,
                rows,
                mode="append",
                commit_properties=properties,
                writer_properties=self.writer_properties(table),
                post_commithook_properties=self._upkeep,
            )

        if epoch is None:
            write(self.handle(table), None)
        elif not self.once(table, epoch, write, _transaction_of(table, epoch, rows)):
            self.count(table, None)
            return 0
        self.count(table, rows.num_rows)
        return int(rows.num_rows)

    def add_files(self, table: str, files: Sequence[DataFile], epoch: int) -> int:
        """Add the files of an epoch to a table in one Delta commit; no files, no commit.

        Output: rows added; none where the table holds the epoch already.
        Errors: LakeError when a file is gone.
        """
        if not files:
            return 0

        def write(handle: DeltaTable, properties: CommitProperties) -> None:
            self._check_there(table, files)
            handle.create_write_transaction(
                [file.added() for file in files],
                "append",
                handle.schema(),
                commit_properties=properties,
                post_commithook_properties=self._upkeep,
            )

        rows = sum(file.rows for file in files)
        if not self.once(table, epoch, write):
            self.count(table, None)
            return 0
        self.count(table, rows)
        return rows

    def _check_there(self, table: str, files: Sequence[DataFile]) -> None:
        """Check that files are there: what nobody has named yet, VACUUM may have deleted.

        What an executor wrote may be seen here a little later: some file systems have caches.
        Errors: LakeError; the epoch is landed again by the next start.
        """
        filesystem = self.place.filesystem(table, {file.path: file.size_bytes for file in files})
        missing, patience = list(files), time.monotonic() + VISIBLE_S
        while missing:
            found = filesystem.get_file_info([file.path for file in missing])
            missing = [
                file for file, info in zip(missing, found, strict=True)
                if info.type != pa_fs.FileType.File or info.size != file.size_bytes
            ]  # fmt: skip
            if missing and time.monotonic() > patience:
                raise LakeError(
                    f"the file {missing[0].path} of the table {table} of {self.path} was written "
                    f"for an epoch and is not there after {VISIBLE_S:.0f} s: nothing is lost, "
                    "start again; if maintenance has deleted it, a longer "
                    "maintenance.file_retention_ms keeps it"
                )
            if missing:
                time.sleep(_LOOK_S)

    def once(
        self,
        table: str,
        epoch: int,
        write: Callable[[DeltaTable, CommitProperties], None],
        transaction: int | None = None,
    ) -> bool:
        """Let `write` commit the rows of an epoch, unless the table holds it.

        Input: `transaction`: the number of the commit where it is not that of the epoch.
        delta-rs refuses a commit only when its identifier stands in a commit that the handle has
        not seen; what it has seen is compared here. So the handle is not refreshed in between.
        Output: whether it was committed here. Errors: CommitFailedError when the table is changed
        again and again by others.
        """
        version = epoch if transaction is None else transaction
        with self._locks[table]:
            tries = 0
            while self._transaction(table, handle := self.handle(table)) < version:
                properties = CommitProperties(
                    custom_metadata={"txlake.epoch": str(epoch)},
                    app_transactions=[Transaction(self.app_id(), version)],
                )
                try:
                    write(handle, properties)
                except CommitFailedError:
                    self._drop(table)
                    tries += 1
                    if tries == _COMMIT_TRIES:
                        raise
                    continue
                self._transactions[table] = handle.version(), version
                return True
        return False

    def app_id(self) -> str:
        """Return under which name this lake's transactions stand in its tables."""
        return f"txlake/{self.tables_id()}"

    def _transaction(self, table: str, handle: DeltaTable) -> int:
        """Return the newest transaction of this lake in the table as a handle sees it; -1: none."""
        at, version = self._transactions.get(table, (-1, -1))
        if at != handle.version():
            seen = handle.transaction_version(self.app_id())
            version = -1 if seen is None else seen
            self._transactions[table] = handle.version(), version
        return version

    def take_stock(self, rows: Mapping[str, int]) -> None:
        """Take how many rows each table holds; from here on appends are counted."""
        self._stock, self._wrote = dict(rows), set()

    def count(self, table: str, rows: int | None) -> None:
        """Count what was written into a table; None: its rows must be counted by its log."""
        self._wrote.add(table)
        if rows is None:
            self._stock.pop(table, None)
        elif table in self._stock or self.version(table) <= 1:
            self._stock[table] = self._stock.get(table, 0) + rows

    def written(self) -> dict[str, TableAt]:
        """Return what the tables hold that were written since this was last asked, by name."""
        tables, self._wrote = sorted(self._wrote - {"epochs", "lake"}), set()
        for table in tables:
            if table not in self._stock:
                self._stock[table] = pc.sum(self.files(table)["num_records"]).as_py() or 0
        return {table: TableAt(self.version(table), self._stock[table]) for table in tables}

    def version(self, table: str) -> int:
        """Return the version that our handle of a table stands at."""
        found = self._handles.get(table) or self.handle(table)
        return int(found.version())

    def files(self, table: str) -> pa.Table:
        """Return the files of a table's newest version, with their statistics, as its log has them.

        Errors: MissingTableError, BrokenLakeError.
        """
        return self.files_of(table, self.handle(table))

    def files_of(self, table: str, handle: DeltaTable) -> pa.Table:
        """Return the same of the version that a handle stands at."""
        with self.reading(table):
            return pa.table(handle.get_add_actions(flatten=True))

    @staticmethod
    def writer_properties(table: str) -> WriterProperties:
        """Say how the files of a table are written."""
        return _MESSAGES.get(kind_of(table), _OTHERS)

    def dataset(self, table: str) -> ds.Dataset:
        """Return the table's newest version as an Arrow dataset.

        `DeltaTable.to_pyarrow_dataset` writes every statistic of every file down as an expression,
        half a ms a file; here only those of the columns that prune are.
        """
        handle = self.handle(table)
        files = self.files_of(table, handle)
        filesystem = self.filesystem(table, files)
        schema = pa.schema(handle.schema().to_arrow())
        parquet = ds.ParquetFileFormat()
        fragments = [
            parquet.make_fragment(path, filesystem=filesystem, partition_expression=bounds)
            for path, bounds in zip(files["path"].to_pylist(), _bounds(files), strict=True)
        ]
        return ds.FileSystemDataset(fragments, schema, parquet, filesystem)

    def filesystem(self, table: str, files: pa.Table) -> pa_fs.FileSystem:
        """Return the file system for some files of a table, as its log names them."""
        paths, sizes = (files[name].to_pylist() for name in ("path", "size_bytes"))
        return self.place.filesystem(table, dict(zip(paths, sizes, strict=True)))

    def read(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Read a table's newest version; files that statistics rule out are not opened."""
        with self.reading(table):
            rows = self.dataset(table).to_table(
                columns=list(columns) if columns else None, filter=where
            )
            rows.validate(full=True)  # text that is no UTF-8 would be found much later
            return rows

    def holds(self, table: str, epoch: int) -> bool:
        """Return whether the rows of an epoch, or of a later one, were committed to a table."""
        with self.reading(table):
            return self._transaction(table, self.handle(table)) >= epoch

    def forget(self, table: str | None = None) -> None:
        """Drop the handle of a table, or all, so that the next use reads the log anew."""
        if table is None:
            self._handles.clear()
            self._transactions.clear()
            self._stock.clear()
        else:
            self._drop(table)

    def _drop(self, table: str) -> None:
        self._handles.pop(table, None)
        self._transactions.pop(table, None)

    def last(self, table: str, column: str) -> Any:
        """Return the largest value of a column by the statistics of the log, without reading."""
        files = self.files(table)
        if files.num_rows == 0 or f"max.{column}" not in files.column_names:
            return None
        return pc.max(files[f"max.{column}"]).as_py()


def owner_of(handle: DeltaTable) -> str:
    """Return the id of the lake that a table says it belongs to; empty where it says nothing."""
    return handle.metadata().configuration.get(LAKE_ID_PROPERTY) or ""


def _transaction_of(table: str, epoch: int, rows: pa.Table) -> int:
    """Return which transaction of a table the rows of an epoch are; `epochs` has two an epoch."""
    if table != "epochs":
        return epoch
    return 2 * epoch + int(rows["state"][-1].as_py() == COMMITTED)


_PRUNING = ("epoch", "queue_id", "queue_offset", "transaction_id")


def _bounds(files: pa.Table) -> list[pc.Expression | None]:
    """Return for each file what holds for all its rows; a column with nulls says nothing."""
    bounds: list[pc.Expression | None] = [None] * files.num_rows
    for name in _PRUNING:
        wanted = [f"{what}.{name}" for what in ("min", "max", "null_count")]
        if not set(wanted) <= set(files.column_names):
            continue
        field = pc.field(name)
        rows = zip(*(files[column].to_pylist() for column in wanted), strict=True)
        for number, (least, most, nulls) in enumerate(rows):
            if nulls == 0 and least is not None and most is not None:
                within = (field >= least) & (field <= most)
                before = bounds[number]
                bounds[number] = within if before is None else before & within
    return bounds
