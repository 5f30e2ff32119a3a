"""A table's newest version: the handle of delta-rs, and the files that this process has added.

On S3 the driver puts entries of the log itself and does not read them back. So the newest version
is the one that the handle has read and the files of those entries, until the handle is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from storage.files.data_files import DataFile
from storage.files.location import LakeLocation
from storage.lake.datasets import files_of
from storage.lake.delta_log import with_added
from storage.lake.open_table import translating_read_errors, translating_store_errors
from txlake._delta_log import is_newest, read_newest_checkpoint


class TableHead:
    """One table. The caller sees to it that one thread at a time uses it.

    Input: `is_trusted`: nobody else writes the table, so that the log need not be asked whether it
    has something newer.
    """

    def __init__(self, place: LakeLocation, name: str, *, is_trusted: bool) -> None:
        self._place = place
        self._name = name
        self._is_trusted = is_trusted
        self._path = place.table_path(name)

        self._handle: DeltaTable | None = None
        self._is_current = False
        self._added: list[DataFile] = []  # by entries of ours that the handle has not read
        self._ahead = 0  # how many such entries there are
        self._seen = -1, -1  # a Delta version, and the newest transaction up to it

    def handle(self) -> DeltaTable:
        """Returns a handle that has read all entries.

        Errors: MissingTableError; BrokenLakeError when the log cannot be read.
        """
        handle = self._handle

        if handle is not None:
            is_known = self._is_trusted and self._is_current and not self._ahead
            if is_known or self._has_read_all(handle):
                return handle

            try:
                with translating_store_errors(self._place):
                    handle.update_incremental()
                self._take(handle)
                return handle
            except DeltaError:  # its log was cleaned up beyond the version of the handle
                self._handle = None

        with translating_read_errors(self._place, self._name):
            if self._place.is_local:
                read_newest_checkpoint(self._path)
            handle = DeltaTable(self._path, storage_options=self._place.storage_options)

        self._take(handle)
        return handle

    def cached_handle(self) -> DeltaTable:
        """Returns a handle that lacks nothing but entries of ours. Errors: as `handle`."""
        if self._ahead and self._is_current and self._handle is not None:
            return self._handle
        return self.handle()

    def _has_read_all(self, handle: DeltaTable) -> bool:
        """Returns whether the log is known to have nothing newer; on a store it never is."""
        return self._place.is_local and is_newest(self._path, handle.version())

    def _take(self, handle: DeltaTable) -> None:
        self._handle = handle
        self._is_current = True
        self._added, self._ahead = [], 0

    def version(self) -> int:
        """Returns the newest known version, without a look at the log."""
        return int((self._handle or self.handle()).version()) + self._ahead

    def files(self) -> pa.Table:
        """Returns the files of the newest version, as delta-rs lists them."""
        return with_added(files_of(self.cached_handle()), self._added)

    def invalidate(self) -> None:
        """Has the log read at the next use."""
        self._is_current = False

    def reset(self) -> None:
        """Drops all that is known."""
        self._handle = None
        self._is_current = False
        self._added, self._ahead = [], 0
        self._seen = -1, -1

    def transaction(self, handle: DeltaTable, app_id: str) -> int:
        """Returns the newest transaction in a handle, or in entries of ours; -1 before the first.

        delta-rs reads all entries since the checkpoint for it, so it is kept.
        """
        seen_version, transaction = self._seen
        newest = handle.version() + self._ahead

        if seen_version != newest:
            recorded = handle.transaction_version(app_id)
            transaction = -1 if recorded is None else recorded
            self._seen = newest, transaction

        return transaction

    def committed(self, handle: DeltaTable, before: int, transaction: int) -> None:
        """Takes a commit that was made through a handle of version `before`."""
        self._is_current = handle.version() > before

        if not self._is_current:  # a commit of files leaves the handle at its version
            with suppress(DeltaError, OSError):
                handle.update_incremental()
            self._is_current = handle.version() == before + 1  # ours, and no other

        if self._is_current:
            self._seen = handle.version(), transaction

    def append_entry(self, files: Sequence[DataFile], transaction: int) -> None:
        """Takes files that an entry of ours has added as the next version."""
        self._added += files
        self._ahead += 1
        self._seen = self.version(), transaction
