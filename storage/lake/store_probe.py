"""Can a store do what a lake needs of it? Tried at each start, beside the lake's tables.

Delta's log has one writer of each version only where a PUT can be made conditional: `If-None-Match:
*`. A store that ignores the condition says nothing. So some writers commit one version of a small
table at the same moment, and one of them alone may have made it: has been told so, or is named by
the log. The answer of the one that has made it can be lost.
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
_WRITER: Final = "txlake.writer"  # of a commit: which of the writers has made it


class StoreProbe:
    """A probe of one store, in a table that only this one uses; it can be tried again."""

    def __init__(self, place: LakeLocation) -> None:
        self._place = place
        self._name = f"_probe-{uuid.uuid4().hex}"

    def require_conditional_put(self) -> None:
        """Checks that of several writers of one version a store lets one through.

        Errors: StoreRefusedError; StoreAwayError if no writer got through. What was written for it
        is deleted, at the latest when it is tried again.
        """
        with translating_store_errors(self._place):
            self._delete()
            try:
                make_table(self._place, self._name, _SCHEMA, {})
                for _ in range(_ROUNDS):
                    self._race()
            except BaseException:
                with suppress(OSError):  # says less than what has ended the probe
                    self._delete()
                raise
            self._delete()

    def _race(self) -> None:
        """Lets writers make the next version. Errors: as `require_conditional_put`."""
        place = self._place
        together = threading.Barrier(_WRITERS)
        handles = [self._opened() for _ in range(_WRITERS)]
        names = [uuid.uuid4().hex for _ in handles]

        def commit(handle: DeltaTable, name: str) -> Exception | None:
            properties = CommitProperties(custom_metadata={_WRITER: name}, max_commit_retries=0)
            together.wait()
            try:
                handle.create_write_transaction([], "append", _SCHEMA, commit_properties=properties)
            except (DeltaError, OSError) as error:
                return error
            return None

        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-probe") as pool:
            errors = list(pool.map(commit, handles, names))

        winners = {name for name, error in zip(names, errors, strict=True) if error is None}
        made = self._maker_of(handles[0].version() + 1)
        if made is not None:
            winners.add(made)
        if not winners:
            raise _away(place, [error for error in errors if error is not None])
        if len(winners) > 1:
            raise StoreRefusedError(
                f"the lake {place.path}: its store let {len(winners)} of {_WRITERS} writers make "
                "one version of a table; a lake needs conditional PUT (If-None-Match), by which "
                "one does"
            )

    def _maker_of(self, version: int) -> str | None:
        """Returns who has made a version, as the log says; None if it was not made."""
        handle = self._opened()
        if handle.version() < version:
            return None
        return str(handle.history(1)[0].get(_WRITER))

    def _opened(self) -> DeltaTable:
        path = self._place.table_path(self._name)
        return DeltaTable(path, storage_options=self._place.storage_options)

    def _delete(self) -> None:
        beside: pa_fs.FileSystem = self._place.filesystem("")
        with suppress(FileNotFoundError):
            beside.delete_dir(self._name)


def _away(place: LakeLocation, errors: list[Exception]) -> LakeError:
    """Returns what kept all writers from making a version: a refusal before an absence."""
    troubles = [found for error in errors if (found := store_error(place, error)) is not None]
    refusals = [trouble for trouble in troubles if isinstance(trouble, StoreRefusedError)]
    found = next(iter([*refusals, *troubles]), None)
    said = str(errors[0]).strip().partition("\n")[0]
    return found or StoreAwayError(
        f"the store of the lake {place.path} let no writer make a version of a table ({said})"
    )
