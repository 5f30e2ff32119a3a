"""One table of a lake: its handle, always at the newest version, and commits that happen once.

Every append of an epoch carries a Delta transaction identifier (`txlake/<lake id>`, the epoch): of
two drivers that write one epoch only one does, whatever the store. Source: Delta's protocol,
"Transaction Identifiers".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from storage.errors import BrokenLakeError, StoreAwayError
from storage.files.data_files import STATISTICS, DataFile
from storage.files.location import LakeLocation
from storage.files.order import table_kind
from storage.files.small_file_cache import SmallFileCache
from storage.lake.datasets import bounds_of, dataset_of
from storage.lake.delta_log import commit_json, is_supported, log_entries
from storage.lake.open_table import make_table, translating_read_errors, translating_store_errors
from storage.lake.table_head import TableHead
from txlake._delta_handle import file_stats, files_of
from txlake._delta_log import LAKE_ID_PROPERTY, driver_id, lake_id_of
from txlake.protocol import DELETED_EPOCH_ID, deleted_id, floor_id

_CHECKPOINT_INTERVAL = "100"  # about 100: each start replays at most this many log files
_COMMIT_TRIES = 20  # a commit is refused when another changed the table, as maintenance does
# In the error of delta-rs after the log was cleaned up beyond the version of the handle.
_LOG_IS_CUT = "Invalid table version"
Write = Callable[[DeltaTable, CommitProperties], None]
NewFiles = Callable[[], Sequence[DataFile]]


class LakeTable:
    """A table of a lake. One thread at a time writes to it.

    Input: `lake_id`: returns the id of its lake; `is_driver`: this process alone writes the lake.
    On a store it then does not ask whether the log has something newer, which is a request each
    time: another driver's commits show when a commit is refused. `file_cache`: of the files that it
    has read last.
    """

    def __init__(
        self,
        location: LakeLocation,
        name: str,
        lake_id: Callable[[], str],
        *,
        is_driver: bool = False,
        file_cache: SmallFileCache | None = None,
    ) -> None:
        self._location = location
        self._name = name
        self._lake_id = lake_id

        self._file_cache = file_cache
        self._entries = log_entries(location, name) if is_driver else None
        self._newest = TableHead(location, name, is_trusted=is_driver and not location.is_local)
        self._lock = threading.RLock()

    @property
    def has_entries(self) -> bool:
        """Returns whether the driver writes the log's entries itself, where nothing forbids it."""
        return self._entries is not None

    def create(self, schema: pa.Schema) -> None:
        """Makes the table if it is missing, with statistics of the columns that prune."""
        kind = table_kind(self._name)
        configuration: dict[str, str | None] = {
            "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
            LAKE_ID_PROPERTY: self._lake_id(),
        }

        if kind in STATISTICS:
            configuration["delta.dataSkippingStatsColumns"] = STATISTICS[kind]

        make_table(self._location, self._name, schema, configuration)

    def handle(self) -> DeltaTable:
        """Returns the table at its newest version.

        Errors: MissingTableError; BrokenLakeError when its log cannot be read.
        """
        with self._lock:  # a handle that is being written through is not refreshed
            return self._newest.handle()

    def version(self) -> int:
        """Returns the version that we have reached, without a look at the log."""
        with self._lock:
            return self._newest.version()

    def invalidate(self) -> None:
        """Has the log read again after commits that were not made by `commit_once`."""
        self._newest.invalidate()

    def reset(self) -> None:
        """Drops the handle, so that the next use reads the log anew."""
        with self._lock:
            self._newest.reset()

    def translating_read_errors(self) -> AbstractContextManager[None]:
        """Returns a block in which an error becomes one sentence that names the table."""
        return translating_read_errors(self._location, self._name)

    def lake_id(self) -> str:
        """Returns the id of the lake that the table belongs to; empty if it cannot be read."""
        try:
            return lake_id_of(self.handle())
        except BrokenLakeError:
            return ""

    def files(self, handle: DeltaTable | None = None) -> pa.Table:
        """Returns the files of a version, with their statistics, as the log has them.

        Input: a handle at that version; None: the newest.
        Errors: MissingTableError, BrokenLakeError.
        """
        with self.translating_read_errors():
            if handle is not None:
                return files_of(handle)
            with self._lock:
                return self._newest.files()

    def rows(self) -> int:
        """Returns how many rows were written, whether they were deleted since or not."""
        handle = self.handle()
        present = pc.sum(self.files(handle)["num_records"]).as_py() or 0
        return int(present) + deleted_rows(handle)

    def max_value(self, column: str) -> Any:
        """Returns the largest value of a column by the log; None if it has no statistics."""
        return pc.max(file_stats(self.files(), [f"max.{column}"])[0]).as_py()

    def min_value(self, column: str) -> Any:
        """Returns the smallest value of a column by the log; None if a file has no statistics."""
        minima = file_stats(self.files(), [f"min.{column}"])[0]
        return None if minima.null_count else pc.min(minima).as_py()

    def dataset(self) -> ds.Dataset:
        """Returns the newest version as an Arrow dataset.

        `DeltaTable.to_pyarrow_dataset` writes every statistic of every file down as an expression,
        half a ms a file; here only those of the columns that prune are.
        """
        with self._lock:
            files = self.files()
            schema = pa.schema(self._newest.cached_handle().schema().to_arrow())
        return self.dataset_of(files, schema, bounds_of(files))

    def dataset_of(
        self,
        files: pa.Table,
        schema: pa.Schema,
        bounds: Sequence[pc.Expression | None] | None = None,
    ) -> ds.Dataset:
        """Returns files of it as an Arrow dataset. Input: as of `datasets.dataset_of`."""
        filesystem = None
        if self._file_cache is not None:
            filesystem = self._file_cache.of(self._name, files)

        return dataset_of(self._location, self._name, files, schema, bounds, filesystem)

    def commit_once(
        self,
        epoch: int,
        write: Write,
        transaction: int | None = None,
        files: NewFiles | None = None,
    ) -> bool:
        """Lets `write` commit the rows of an epoch, unless the table holds it.

        Input: `transaction`: the number of the commit if it is not that of the epoch; `files`:
        returns the files that `write` commits, so that the driver can write the entry itself.
        delta-rs refuses a commit only if its identifier stands in a commit that the handle has not
        seen. Commits that the handle has seen are compared here, and it is not refreshed in
        between.
        Output: whether it was committed here. Errors: CommitFailedError if others change the table
        again and again; StoreAwayError: it can be committed or not, which the next call finds out.
        """
        version = epoch if transaction is None else transaction
        with self._lock:
            for remaining in reversed(range(_COMMIT_TRIES)):
                is_first = remaining == _COMMIT_TRIES - 1
                can_append = files is not None and is_first and self._can_append()

                handle = self._newest.cached_handle() if can_append else self.handle()
                if self._newest.transaction(handle, self._app_id()) >= version:
                    return False

                if files is not None and can_append:
                    with translating_store_errors(self._location):
                        new_files = files()
                    if self._append(new_files, epoch, version):
                        return True

                elif self._write(handle, write, epoch, version, is_last=remaining == 0):
                    return True

                self._newest.reset()

        raise AssertionError("unreachable")

    def _write(
        self, handle: DeltaTable, write: Write, epoch: int, transaction: int, *, is_last: bool
    ) -> bool:
        """Commits by delta-rs. Output: False if others have changed the table."""
        properties = CommitProperties(
            custom_metadata={"txlake.epoch": str(epoch)},
            app_transactions=[Transaction(self._app_id(), transaction)],
        )

        before = handle.version()
        try:
            with translating_store_errors(self._location):
                write(handle, properties)
        except DeltaError as error:
            if is_last or not (isinstance(error, CommitFailedError) or _LOG_IS_CUT in str(error)):
                raise
            return False

        self._newest.committed(handle, before, transaction)
        return True

    def _can_append(self) -> bool:
        return self._entries is not None and is_supported(self._newest.cached_handle())

    def _append(self, files: Sequence[DataFile], epoch: int, transaction: int) -> bool:
        """Writes the next entry of the log.

        Output: False if it is not the newest then, or if the answer was lost: the log tells which.
        """
        assert self._entries is not None
        entry = commit_json(files, self._app_id(), transaction, epoch)

        try:
            is_newest = self._entries.append_entry(self._newest.version() + 1, entry)
        except StoreAwayError:
            return False

        if is_newest:
            self._newest.append_entry(files, transaction)
        return is_newest

    def transaction(self) -> int:
        """Returns the newest transaction of the lake in the table; -1 before the first."""
        with self.translating_read_errors(), self._lock:
            return self._newest.transaction(self._newest.cached_handle(), self._app_id())

    def _app_id(self) -> str:
        """Returns under which name the lake's transactions stand in its tables."""
        return driver_id(self._lake_id())


def deleted_rows(handle: DeltaTable) -> int:
    """Returns how many rows were deleted up to a version (`storage/maintenance`)."""
    return int(handle.transaction_version(deleted_id(lake_id_of(handle))) or 0)


def deleted_epoch(handle: DeltaTable) -> int:
    """Returns up to which epoch a topic's messages are deleted; 0: all are there."""
    return int(handle.transaction_version(DELETED_EPOCH_ID) or 0)


def queue_floor(handle: DeltaTable, queue_id: int) -> int:
    """Returns the offset at which a topic's queue begins: older messages are deleted."""
    return int(handle.transaction_version(floor_id(queue_id)) or 0)
