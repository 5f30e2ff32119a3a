"""One table of a lake: its handle, always at the newest version, and commits that happen once.

Every append of an epoch carries a Delta transaction identifier (`txlake/<lake id>`, the epoch): of
two drivers that write one epoch only one does, whatever the store. Source: Delta's protocol,
"Transaction Identifiers".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from storage.errors import BrokenLakeError
from storage.files.data_files import STATISTICS
from storage.files.order import kind_of
from storage.files.place import LakePlace
from storage.lake.datasets import bounds_of, dataset_of
from storage.lake.opening import read_checkpoint, reading, using

LAKE_ID_PROPERTY: Final = "txlake.lakeId"  # of every table: which lake it belongs to
_CHECKPOINT_INTERVAL = "100"  # about 100: each start replays at most this many log files
_COMMIT_TRIES = 20  # a commit is refused when another changed the table, as maintenance does
# What delta-rs says where the log was cleaned up beyond the version that the handle stands at.
_LOG_IS_CUT = "Invalid table version"
Write = Callable[[DeltaTable, CommitProperties], None]


class LakeTable:
    """A table of a lake. One thread at a time writes to it.

    Input: `lake_id`: which lake it belongs to; `is_driver`: this process alone writes the lake. On
    a store it does not ask then whether the log has something newer, which is a request each time:
    what another driver has written shows when a commit is refused.
    """

    def __init__(
        self, place: LakePlace, name: str, lake_id: Callable[[], str], *, is_driver: bool = False
    ) -> None:
        self._place, self._name, self._lake_id = place, name, lake_id
        self._is_trusted = is_driver and not place.is_local
        self._is_current = False
        self._path = place.table_path(name)
        self._lock = threading.RLock()
        self._handle: DeltaTable | None = None
        self._seen = -1, -1  # a Delta version, and the newest transaction up to it

    def create(self, schema: pa.Schema) -> None:
        """Makes the table if it is missing, with statistics of the columns that prune."""
        kind = kind_of(self._name)
        configuration = {
            "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
            LAKE_ID_PROPERTY: self._lake_id(),
        }
        if kind in STATISTICS:
            configuration["delta.dataSkippingStatsColumns"] = STATISTICS[kind]
        with using(self._place):
            DeltaTable.create(
                self._path,
                schema,
                mode="ignore",
                configuration=configuration,
                storage_options=self._place.storage_options,
                raise_if_key_not_exists=False,
            )

    def handle(self) -> DeltaTable:
        """Returns the table at its newest version.

        Errors: MissingTableError; BrokenLakeError when its log cannot be read.
        """
        with self._lock:  # a handle that is being written through is not refreshed
            found = self._handle
            if found is not None:
                if (self._is_trusted and self._is_current) or self._is_newest(found):
                    return found
                try:
                    with using(self._place):
                        found.update_incremental()
                    self._is_current = True
                    return found
                except DeltaError:  # its log was cleaned up beyond where we stood
                    self._handle = None
            with self.reading():
                read_checkpoint(self._place, self._name)
                found = DeltaTable(self._path, storage_options=self._place.storage_options)
            self._handle, self._is_current = found, True
            return found

    def _is_newest(self, handle: DeltaTable) -> bool:
        """Returns whether the log is known to have nothing newer.

        delta-rs lists the log's folder, which takes 0.6 us an entry on a local disk. Where a
        clean-up has deleted the entry we stand at, the next one can be gone, too.
        """
        if not self._place.is_local:
            return False
        now, log = handle.version(), Path(self._path) / "_delta_log"
        return (log / f"{now:020}.json").exists() and not (log / f"{now + 1:020}.json").exists()

    def version(self) -> int:
        """Returns the version that our handle stands at, without a look at the log."""
        return int((self._handle or self.handle()).version())

    def changed(self) -> None:
        """Has the log read for what this process has committed by other means than `once`."""
        self._is_current = False

    def forget(self) -> None:
        """Drops the handle, so that the next use reads the log anew."""
        self._handle = None
        self._seen = -1, -1

    def reading(self) -> AbstractContextManager[None]:
        """Returns a block in which what goes wrong is one sentence that names the table."""
        return reading(self._place, self._name)

    def owner(self) -> str:
        """Returns the id of the lake that the table belongs to; empty if it cannot be read."""
        try:
            return owner_of(self.handle())
        except BrokenLakeError:
            return ""

    def files(self, handle: DeltaTable | None = None) -> pa.Table:
        """Returns the files of a version, with their statistics, as the log has them.

        Input: a handle at that version; None: the newest.
        Errors: MissingTableError, BrokenLakeError.
        """
        handle = handle or self.handle()
        with self.reading():
            return pa.table(handle.get_add_actions(flatten=True))

    def rows(self) -> int:
        """Returns how many rows were written: those that are there and those that were deleted."""
        handle = self.handle()
        there = pc.sum(self.files(handle)["num_records"]).as_py() or 0
        return int(there) + self.deleted(handle)

    def deletions_id(self) -> str:
        """Returns under which name a table says how many of its rows were deleted."""
        return f"txlake-deleted/{self._lake_id()}"

    def deleted(self, handle: DeltaTable) -> int:
        """Returns how many rows were deleted up to a version (`storage/upkeep/expiry.py`)."""
        return int(handle.transaction_version(self.deletions_id()) or 0)

    def last(self, column: str) -> Any:
        """Returns the largest value of a column, as the log says; None if it has no statistics."""
        files = self.files()
        if files.num_rows == 0 or f"max.{column}" not in files.column_names:
            return None
        return pc.max(files[f"max.{column}"]).as_py()

    def dataset(self) -> ds.Dataset:
        """Returns the newest version as an Arrow dataset.

        `DeltaTable.to_pyarrow_dataset` writes every statistic of every file down as an expression,
        half a ms a file; here only those of the columns that prune are.
        """
        handle = self.handle()
        files = self.files(handle)
        schema = pa.schema(handle.schema().to_arrow())
        return dataset_of(self._place, self._name, files, schema, bounds_of(files))

    def once(self, epoch: int, write: Write, transaction: int | None = None) -> bool:
        """Lets `write` commit the rows of an epoch, unless the table holds it.

        Input: `transaction`: the number of the commit where it is not that of the epoch.
        delta-rs refuses a commit only if its identifier stands in a commit that the handle has not
        seen. What the handle has seen is compared here, and it is not refreshed in between.
        Output: whether it was committed here. Errors: CommitFailedError if others change the table
        again and again; StoreAwayError: it may be committed or not, which the next call finds out.
        """
        version = epoch if transaction is None else transaction
        with self._lock:
            tries = 0
            while self._transaction(handle := self.handle()) < version:
                properties = CommitProperties(
                    custom_metadata={"txlake.epoch": str(epoch)},
                    app_transactions=[Transaction(self._app_id(), version)],
                )
                before = handle.version()
                try:
                    with using(self._place):
                        write(handle, properties)
                except DeltaError as error:
                    if not (isinstance(error, CommitFailedError) or _LOG_IS_CUT in str(error)):
                        raise
                    self.forget()
                    tries += 1
                    if tries == _COMMIT_TRIES:
                        raise
                    continue
                self._seen = handle.version(), version
                self._is_current = handle.version() > before  # not where it committed files
                return True
        return False

    def transaction(self) -> int:
        """Returns the newest transaction of the lake in the table; -1 before the first."""
        with self.reading():
            return self._transaction(self.handle())

    def _app_id(self) -> str:
        """Returns under which name the lake's transactions stand in its tables."""
        return f"txlake/{self._lake_id()}"

    def _transaction(self, handle: DeltaTable) -> int:
        """Returns the same as a handle sees it; delta-rs takes a ms, so it is kept."""
        at, version = self._seen
        if at != handle.version():
            seen = handle.transaction_version(self._app_id())
            version = -1 if seen is None else seen
            self._seen = handle.version(), version
        return version


def owner_of(handle: DeltaTable) -> str:
    """Returns the id of the lake that a table says it belongs to; empty if it has none."""
    return handle.metadata().configuration.get(LAKE_ID_PROPERTY) or ""
