"""The check, at each start of a driver, that an object store has conditional PUT.

Each version of a Delta log has one writer only if the store honours `If-None-Match: *`. A store
that ignores this condition reports no error. So the probe lets several writers commit the same
version of a small table at the same moment: only one may succeed.

A writer has succeeded if the store says so, or if the log names it: the store's answer can be lost.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from storage.errors import LakeError, StoreAwayError, StoreRefusedError
from storage.files.location import LakeLocation
from storage.lake.open_table import make_table, translating_store_errors
from storage.lake.store_error import store_error

_WRITERS: Final = 6
_ROUNDS: Final = 2
_SCHEMA = pa.schema([("probe", pa.int64())])
_WRITER: Final = "txlake.writer"  # in the metadata of a commit: who made it


class StoreProbe:
    """A probe of one store, in a table of its own beside the lake's; it can be tried again."""

    def __init__(self, location: LakeLocation) -> None:
        self._location = location
        self._name = f"_probe-{uuid.uuid4().hex}"

    def require_conditional_put(self) -> None:
        """Checks that a store lets only one of several writers of a version succeed.

        The probe's table is deleted, at the latest by the next try.
        Errors: StoreRefusedError; StoreAwayError if no writer succeeded.
        """
        with translating_store_errors(self._location):
            self._delete()

            try:
                make_table(self._location, self._name, _SCHEMA, {})
                for _ in range(_ROUNDS):
                    self._race()
            except BaseException:
                with suppress(OSError):  # it says less than the error that has ended the probe
                    self._delete()
                raise

            self._delete()

    def _race(self) -> None:
        """Lets all writers commit the next version. Errors: as `require_conditional_put`."""
        barrier = threading.Barrier(_WRITERS)
        handles = [self._open() for _ in range(_WRITERS)]
        names = [uuid.uuid4().hex for _ in handles]

        def commit(handle: DeltaTable, name: str) -> Exception | None:
            properties = CommitProperties(custom_metadata={_WRITER: name}, max_commit_retries=0)
            barrier.wait()
            try:
                handle.create_write_transaction([], "append", _SCHEMA, commit_properties=properties)
            except (DeltaError, OSError) as error:
                return error
            return None

        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-probe") as pool:
            errors = list(pool.map(commit, handles, names))

        winners = {name for name, error in zip(names, errors, strict=True) if error is None}
        logged_writer = self._writer_of(handles[0].version() + 1)
        if logged_writer is not None:
            winners.add(logged_writer)

        if not winners:
            raise _no_winner(self._location, [error for error in errors if error is not None])

        if len(winners) > 1:
            raise StoreRefusedError(
                f"the lake {self._location.path}: its store let {len(winners)} of {_WRITERS} "
                "writers make one version of a table; a lake needs conditional PUT "
                "(If-None-Match), by which one does"
            )

    def _writer_of(self, version: int) -> str | None:
        """Returns the writer of a version, by the log; None if there is no such version."""
        handle = self._open()
        if handle.version() < version:
            return None

        newest_commit = handle.history(1)[0]
        return str(newest_commit.get(_WRITER))

    def _open(self) -> DeltaTable:
        path = self._location.table_path(self._name)
        return DeltaTable(path, storage_options=self._location.storage_options)

    def _delete(self) -> None:
        root: pa_fs.FileSystem = self._location.filesystem("")
        with suppress(FileNotFoundError):
            root.delete_dir(self._name)


def _no_winner(location: LakeLocation, errors: list[Exception]) -> LakeError:
    """Returns the error that kept all writers from making a version: a refusal before others."""
    translated = [store_error(location, error) for error in errors]
    known = [error for error in translated if error is not None]
    refusals = [error for error in known if isinstance(error, StoreRefusedError)]

    if known:
        return [*refusals, *known][0]

    reason = str(errors[0]).strip().partition("\n")[0]
    return StoreAwayError(
        f"the store of the lake {location.path} let no writer make a version of a table ({reason})"
    )
