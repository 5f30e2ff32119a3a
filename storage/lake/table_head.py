"""A table's newest version: the handle of delta-rs, and the files that this process has added.

The driver writes entries of the log itself and does not read them back. So the newest version is
the one that the handle has read and the files of those entries, until the handle is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from storage.files.data_files import DataFile
from storage.files.location import LakeLocation
from storage.lake.delta_log import with_added
from storage.lake.open_table import translating_read_errors
from txlake._delta_handle import DeltaHandle, files_of
from txlake._delta_log import is_newest


class TableHead:
    """One table. The caller sees to it that one thread at a time uses it.

    Input: `is_trusted`: nobody else writes the table, so that the log need not be asked whether it
    has something newer.
    """

    def __init__(self, location: LakeLocation, name: str, *, is_trusted: bool) -> None:
        self._location = location
        self._name = name
        self._is_trusted = is_trusted
        self._path = location.table_path(name)

        self._handle = DeltaHandle(self._path, location.storage_options)
        self._is_current = False
        self._added: list[DataFile] = []  # by entries of ours that the handle has not read
        self._ahead = 0  # how many such entries there are
        self._seen = -1, -1  # a Delta version, and the newest transaction up to it

    def handle(self) -> DeltaTable:
        """Returns a handle that has read all entries.

        Errors: MissingTableError; BrokenLakeError when the log cannot be read.
        """
        handle = self._handle.table
        if handle is not None and self._is_trusted and self._is_current and not self._ahead:
            return handle

        with translating_read_errors(self._location, self._name):
            handle = self._handle.newest()

        self._is_current = True
        self._added = []
        self._ahead = 0
        return handle

    def cached_handle(self) -> DeltaTable:
        """Returns a handle that lacks nothing but entries of ours. Errors: as `handle`."""
        handle = self._handle.table
        if handle is not None and self._ahead and self._is_current and self._is_newest():
            return handle
        return self.handle()

    def _is_newest(self) -> bool:
        """Returns whether the log has nothing newer than the newest known version."""
        return self._is_trusted or is_newest(self._path, self.version())

    def version(self) -> int:
        """Returns the newest known version, without a look at the log."""
        return int((self._handle.table or self.handle()).version()) + self._ahead

    def files(self) -> pa.Table:
        """Returns the files of the newest version, as delta-rs lists them."""
        return with_added(files_of(self.cached_handle()), self._added)

    def invalidate(self) -> None:
        """Has the log read at the next use."""
        self._is_current = False

    def reset(self) -> None:
        """Drops all that is known."""
        self._handle.forget()
        self._is_current = False
        self._added = []
        self._ahead = 0
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
