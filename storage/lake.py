"""The lake: its folders, its tables, and the one way in which rows are added to them.

delta-rs adds what the driver has at hand: 5 ms a commit instead of 200 (DECISIONS.md 2). Spark
writes half, schedule and topic tables where an epoch's messages are too large for the driver.
Every append belongs to one epoch and happens once.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
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
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from storage.errors import NewerLakeError, NotALakeError, UnfinishedLakeError
from storage.file_order import DUE_GROUP_ROWS, in_file_order, kind_of
from storage.kafka_rows import HALF, SCHEDULE
from storage.recent import RecentMessages
from storage.row_groups import OpenedFiles
from storage.schemas import FORMAT_VERSION, TABLES, TOPIC

# Columns with statistics: those that prune. Bodies and properties have none.
STATISTICS = {
    "half": "queue_id,queue_offset,epoch,transaction_id",
    "schedule": "queue_id,queue_offset,epoch",
    "topics": "queue_id,queue_offset,epoch,stored_at",
}
# Messages are read by their coordinates, a few among many: a reader skips groups of rows.
_GROUP_ROWS = {"half": 4_096, "schedule": DUE_GROUP_ROWS, "topics": 4_096}
_MESSAGES = {
    kind: WriterProperties(max_row_group_size=rows, compression="SNAPPY")
    for kind, rows in _GROUP_ROWS.items()
}
_OTHERS = WriterProperties(compression="SNAPPY")
_CHECKPOINT_INTERVAL = "100"  # about 100: each start replays at most this many log files
# Looking after the log lists its folder, at every commit; maintenance does it between epochs.
NO_LOG_UPKEEP = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Lake:
    """One lake. Not shared between threads for writing to the same table.

    Input: path: a folder or a URI; `storage_options` go to delta-rs as they are; `is_maintained`:
    somebody else makes the checkpoints of the logs, so appends need not.
    """

    def __init__(
        self,
        path: str,
        storage_options: dict[str, str] | None = None,
        *,
        is_maintained: bool = False,
    ) -> None:
        self.path = path.rstrip("/") if "://" in path else str(Path(path).absolute())
        self.storage_options = storage_options
        self._upkeep = NO_LOG_UPKEEP if is_maintained else None
        self._handles: dict[str, DeltaTable] = {}
        self.opened = OpenedFiles()
        self.recent = RecentMessages() if is_maintained else None  # of `half`; the job's own alone

    def table_path(self, table: str) -> str:
        """Give a table's place; `topics/<table_id>` names a topic's table."""
        return f"{self.path}/{table}"

    @staticmethod
    def schema(table: str) -> pa.Schema:
        """Give a table's Arrow schema."""
        return TOPIC if table.startswith("topics/") else TABLES[table]

    def exists(self) -> bool:
        """Say whether there is a lake at this path; one that is half made is none yet."""
        path = self.table_path("lake")
        if not DeltaTable.is_deltatable(path, self.storage_options):
            return False
        return bool(self.read("lake").num_rows)

    def create(self, now: dt.datetime) -> str:
        """Make the lake where there is none, finish one half made, and give its id.

        Replay: makes what is missing; the `lake` row is written last and once.
        Errors: UnfinishedLakeError for what a rebuild has begun.
        """
        self.create_tables()
        if self.read("lake").num_rows == 0:
            self._check_not_begun()
            row = {
                "lake_id": uuid.uuid4().hex,
                "format_version": FORMAT_VERSION,
                "created_at": now,
            }
            self.append("lake", pa.Table.from_pylist([row], schema=TABLES["lake"]))
        return self.lake_id()

    def create_tables(self) -> None:
        """Make the tables that are missing; it is no lake before it has all of them."""
        for table in sorted(TABLES, key="lake".__eq__):
            self.create_table(table)

    def _check_not_begun(self) -> None:
        """Check that nothing was written: a rebuild writes the `lake` row when it has ended."""
        first_topic = self.table_path("topics/1")
        if DeltaTable.is_deltatable(first_topic, self.storage_options) or any(
            self.last(table, "epoch") is not None for table in TABLES if table != "lake"
        ):
            raise UnfinishedLakeError(
                f"{self.path} is a lake that is being rebuilt, or whose rebuild was interrupted: "
                "run that `txlake replay --into` again, or name another place"
            )

    def create_table(self, table: str) -> None:
        """Make one table if it is missing: plain protocol, statistics where they prune."""
        kind = kind_of(table)
        configuration = {"delta.checkpointInterval": _CHECKPOINT_INTERVAL}
        if kind in STATISTICS:
            configuration["delta.dataSkippingStatsColumns"] = STATISTICS[kind]
        DeltaTable.create(
            self.table_path(table),
            self.schema(table),
            mode="ignore",
            configuration=configuration,
            storage_options=self.storage_options,
        )

    def lake_id(self) -> str:
        """Give the lake's id after checking that this version can use it.

        Errors: NotALakeError, UnfinishedLakeError, NewerLakeError.
        """
        try:
            rows = self.read("lake").to_pylist()
        except TableNotFoundError:
            rows = []
        if not rows:
            if DeltaTable.is_deltatable(self.table_path("lake"), self.storage_options):
                self._check_not_begun()
            raise NotALakeError(f"{self.path} is not a lake: `txlake run` makes one there")
        version = rows[0]["format_version"]
        if version > FORMAT_VERSION:
            raise NewerLakeError(
                f"the lake {self.path} has format {version}; this txlake knows formats up to "
                f"{FORMAT_VERSION}: install the newer txlake that made it"
            )
        return str(rows[0]["lake_id"])

    def handle(self, table: str) -> DeltaTable:
        """Give the table at its newest version.

        Errors: TableNotFoundError from deltalake.
        """
        found = self._handles.get(table)
        if found is not None:
            try:
                found.update_incremental()
                return found
            except DeltaError:  # its log was cleaned up beyond where we stood
                self.forget(table)
        found = DeltaTable(self.table_path(table), storage_options=self.storage_options)
        self._handles[table] = found
        return found

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        """Add rows to a table in one Delta commit; no rows, no commit. Output: rows added."""
        if rows.num_rows == 0:
            return 0
        properties = None
        if epoch is not None:
            properties = CommitProperties(custom_metadata={"txlake.epoch": str(epoch)})
        if table == SCHEDULE:  # all others come as they are read
            rows = in_file_order(table, rows)
        write_deltalake(
            self.handle(table),
            rows,
            mode="append",
            commit_properties=properties,
            writer_properties=self.writer_properties(table),
            post_commithook_properties=self._upkeep,
        )
        if table == HALF and self.recent is not None:
            self.recent.add(rows)
        return int(rows.num_rows)

    @staticmethod
    def writer_properties(table: str) -> WriterProperties:
        """Say how the files of a table are written."""
        return _MESSAGES.get(kind_of(table), _OTHERS)

    def dataset(self, table: str) -> ds.Dataset:
        """Give the table's newest version as an Arrow dataset.

        `DeltaTable.to_pyarrow_dataset` writes every statistic of every file down as an expression,
        half a ms a file; here only those of the columns that prune are.
        """
        handle = self.handle(table)
        files = pa.table(handle.get_add_actions(flatten=True))
        filesystem = self.filesystem(table, files)
        schema = pa.schema(handle.schema().to_arrow())
        parquet = ds.ParquetFileFormat()
        fragments = [
            parquet.make_fragment(path, filesystem=filesystem, partition_expression=bounds)
            for path, bounds in zip(files["path"].to_pylist(), _bounds(files), strict=True)
        ]
        return ds.FileSystemDataset(fragments, schema, parquet, filesystem)

    def filesystem(self, table: str, files: pa.Table) -> pa_fs.FileSystem:
        """Give the file system in which a table's files have the paths that its log gives them.

        Input: `files` with path and size_bytes, as `get_add_actions` gives them.
        """
        uri = self.table_path(table)
        if "://" not in uri:  # delta-rs's own file system can abort Python while it ends
            return pa_fs.SubTreeFileSystem(uri, pa_fs.LocalFileSystem())
        sizes = dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
        return pa_fs.PyFileSystem(DeltaStorageHandler(uri, self.storage_options, sizes))

    def read(
        self, table: str, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Read a table's newest version; files that statistics rule out are not opened."""
        return self.dataset(table).to_table(
            columns=list(columns) if columns else None, filter=where
        )

    def has_epoch(self, table: str, epoch: int) -> bool:
        """Say whether a table holds rows of an epoch; only its own recovery needs to ask."""
        return bool(self.dataset(table).count_rows(filter=pc.field("epoch") == epoch))

    def forget(self, table: str | None = None) -> None:
        """Drop the handle of a table, or all, so that the next use reads the log anew."""
        if table is None:
            self._handles.clear()
            if self.recent is not None:
                self.recent.clear()
        else:
            self._handles.pop(table, None)

    def last(self, table: str, column: str) -> Any:
        """Give the largest value of a column by the statistics of the log, without reading."""
        actions = pa.table(self.handle(table).get_add_actions(flatten=True))
        if actions.num_rows == 0 or f"max.{column}" not in actions.column_names:
            return None
        return pc.max(actions[f"max.{column}"]).as_py()


_PRUNING = ("epoch", "queue_id", "queue_offset", "transaction_id")


def _bounds(files: pa.Table) -> list[pc.Expression | None]:
    """Give for each file what holds for all its rows; a column with nulls says nothing."""
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
