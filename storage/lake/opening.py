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

from storage.errors import WAY_BACK, BrokenLakeError, MissingTableError, NotALakeError

_VERSION_DIGITS = 20  # of a log file's name


def checked_path(path: str) -> str:
    """Returns where a lake is. Errors: NotALakeError for a path that cannot be a folder."""
    scheme, separator, _ = path.partition("://")
    if separator:
        raise NotALakeError(
            f"the lake {path}: {scheme}:// is not supported yet; name a folder on a local disk"
        )
    if not path or "\0" in path:
        raise NotALakeError(f"the lake {path!r}: no folder can have this name")
    folder = Path(path).absolute()
    try:
        above = next((at for at in (folder, *folder.parents) if at.exists()), folder)
        is_file = above.exists() and not above.is_dir()
    except OSError as error:
        raise NotALakeError(f"the lake {folder} cannot be looked at: {error.strerror}") from error
    if is_file:
        raise NotALakeError(f"the lake {folder}: {above} is a file, not a folder")
    return str(folder)


def read_checkpoint(table_path: str) -> None:
    """Reads the newest checkpoint of a table's log, if it has one.

    Errors: ArrowException, OSError when it is damaged.
    """
    found = sorted((Path(table_path) / "_delta_log").glob("*.checkpoint*.parquet"))
    if not found:
        return
    version = found[-1].name[:_VERSION_DIGITS]
    for part in found:
        if part.name.startswith(version):
            pq.ParquetFile(part, memory_map=True).read(use_threads=False)


@contextmanager
def reading(lake_path: str, table: str) -> Iterator[None]:
    """Turns what goes wrong while a table is read into one sentence that names the table.

    Errors: BrokenLakeError; MissingTableError for a table that is not there.
    """
    try:
        yield
    except BrokenLakeError:
        raise
    except TableNotFoundError as error:
        raise missing(lake_path, table) from error
    except (DeltaError, OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(lake_path, table, error) from error
    except BaseException as error:  # delta-rs panics over some logs
        if type(error).__name__ != "PanicException":
            raise
        raise _unreadable(lake_path, table, error) from None


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
