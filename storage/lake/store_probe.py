"""Can a store do what a lake needs of it? Tried at each start, beside the lake's tables.

Delta's log has one writer of each version only where a PUT can be made conditional: `If-None-Match:
*`. A store that ignores the condition says nothing. So some writers commit the same transaction to
a small table at the same moment, and one of them alone may be told that it has.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from storage.errors import StoreRefusedError
from storage.files.place import LakePlace
from storage.lake.opening import using

_WRITERS: Final = 6
_ROUNDS: Final = 2
_ROW = pa.table({"probe": [1]})


def require_conditional_put(place: LakePlace) -> None:
    """Checks that of several writers of one version a store lets one through.

    Errors: StoreRefusedError, StoreAwayError. What was written for it is deleted.
    """
    name = f"_probe-{uuid.uuid4().hex}"
    try:
        with using(place):
            DeltaTable.create(
                place.table_path(name), _ROW.schema, storage_options=place.storage_options
            )
            for number in range(_ROUNDS):
                _race(place, name, number)
    finally:
        with using(place), suppress(FileNotFoundError):
            place.filesystem("").delete_dir(name)


def _race(place: LakePlace, name: str, number: int) -> None:
    together = threading.Barrier(_WRITERS)
    handles = [
        DeltaTable(place.table_path(name), storage_options=place.storage_options)
        for _ in range(_WRITERS)
    ]

    def commit(handle: DeltaTable) -> bool:
        properties = CommitProperties(app_transactions=[Transaction("probe", number)])
        together.wait()
        try:
            write_deltalake(handle, _ROW, mode="append", commit_properties=properties)
        except DeltaError:
            return False
        return True

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-probe") as pool:
        winners = sum(pool.map(commit, handles))
    if winners != 1:
        raise StoreRefusedError(
            f"the lake {place.path}: its store let {winners} of {_WRITERS} writers make one "
            "version of a table; a lake needs conditional PUT (If-None-Match), by which one does"
        )
