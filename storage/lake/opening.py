"""Open a lake or a table so that whatever is wrong with it is one sentence.

delta-rs panics over some damaged checkpoints: its threads write to stderr, whatever Python catches
afterwards. Of 5,400 changes to checkpoints it panicked over 13, none of which Arrow could
read. So Arrow reads the newest one first: 3 ms where opening the table takes 13.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, TableNotFoundError

from storage.errors import WAY_BACK, BrokenLakeError, LakeError, MissingTableError
from storage.files.place import LakePlace
from storage.lake.store_trouble import store_trouble

_VERSION_DIGITS = 20  # of a log file's name


def read_checkpoint(place: LakePlace, table: str) -> None:
    """Reads the newest checkpoint of a table's log on a local disk, if it has one.

    Errors: ArrowException, OSError when it is damaged.
    """
    if not place.is_local:
        return
    found = sorted((Path(place.table_path(table)) / "_delta_log").glob("*.checkpoint*.parquet"))
    for part in found:
        if part.name[:_VERSION_DIGITS] == found[-1].name[:_VERSION_DIGITS]:
            pq.ParquetFile(part, memory_map=True).read(use_threads=False)


@contextmanager
def reading(place: LakePlace, table: str) -> Iterator[None]:
    """Turns what goes wrong while a table is read into one sentence that names the table.

    Errors: BrokenLakeError; MissingTableError for a table that is not there; StoreAwayError,
    StoreRefusedError.
    """
    try:
        yield
    except LakeError:
        raise
    except (DeltaError, OSError, pa.ArrowException, UnicodeDecodeError) as error:
        trouble = store_trouble(place, error)
        if trouble is None and isinstance(error, TableNotFoundError):
            trouble = missing(place.path, table)
        raise trouble or _unreadable(place.path, table, error) from error
    except BaseException as error:  # delta-rs panics over some logs
        if type(error).__name__ != "PanicException":
            raise
        raise _unreadable(place.path, table, error) from None


@contextmanager
def using(place: LakePlace) -> Iterator[None]:
    """Turns what a store says when it does not answer, or refuses, into one sentence.

    Errors: StoreAwayError, StoreRefusedError.
    """
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        trouble = store_trouble(place, error)
        if trouble is None:
            raise
        raise trouble from error


def missing(lake_path: str, table: str) -> MissingTableError:
    """Returns the error of a table that is not there."""
    return MissingTableError(
        f"the table {table} of the lake {lake_path} is missing; {WAY_BACK}", "is missing"
    )


def _unreadable(lake_path: str, table: str, error: BaseException) -> BrokenLakeError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    problem = f"cannot be read: {said}"
    return BrokenLakeError(
        f"the table {table} of the lake {lake_path} {problem}; {WAY_BACK}", problem
    )
