"""Open or make a lake or a table so that each error is one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from storage.errors import RESTORE_HINT, BrokenLakeError, DiskError, LakeError, MissingTableError
from storage.files.location import LakeLocation
from storage.lake.store_error import store_error
from txlake._delta_handle import is_panic
from txlake._disk import disk_refusal
from txlake._store_error import innermost

_MESSAGE_MAX = 300  # characters


@contextmanager
def translating_read_errors(location: LakeLocation, table: str) -> Iterator[None]:
    """Turns an error while a table is read into one sentence that names the table.

    Errors: BrokenLakeError; MissingTableError for a table that is not there; DiskError,
    StoreAwayError, StoreRefusedError.
    """
    try:
        yield
    except LakeError:
        raise

    except (DeltaError, OSError, pa.ArrowException, UnicodeDecodeError) as error:
        translated = disk_error(location, error) or store_error(location, error)
        if translated is None and isinstance(error, TableNotFoundError):
            translated = missing(location.path, table)
        raise translated or _unreadable(location.path, table, error) from error

    except BaseException as error:  # delta-rs panics over some logs
        if not is_panic(error):
            raise
        raise _unreadable(location.path, table, error) from None


@contextmanager
def translating_store_errors(location: LakeLocation) -> Iterator[None]:
    """Turns the error of a store that does not answer, or refuses, into one sentence.

    Errors: StoreAwayError, StoreRefusedError.
    """
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        translated = store_error(location, error)
        if translated is None:
            raise
        raise translated from error


@contextmanager
def changing(location: LakeLocation) -> Iterator[None]:
    """Turns an error of a command that changes a lake into one sentence, if the store causes it.

    Errors: StoreAwayError, StoreRefusedError; LakeError for a commit that was refused.
    """
    try:
        yield
    except CommitFailedError as error:
        raise store_error(location, error) or LakeError(
            f"the lake {location.path} refused a commit ({_first_line(error)}): another process "
            "writes it, or its store lost an answer; nothing is lost: run the command again"
        ) from error
    except LakeError:  # it says already which lake, which can be another one
        raise
    except Exception as error:  # Spark passes on the errors of its tasks
        translated = disk_error(location, error) or store_error(location, error)
        if translated is None:
            raise
        raise translated from error


def make_table(
    location: LakeLocation, table: str, schema: pa.Schema, configuration: Mapping[str, str | None]
) -> None:
    """Makes a table if it is missing.

    delta-rs would follow a lost answer with a second commit of the same properties.
    Errors: StoreAwayError: it can be made or not; StoreRefusedError; CommitFailedError.
    """
    with translating_store_errors(location):
        try:
            DeltaTable.create(
                location.table_path(table),
                schema,
                mode="ignore",
                configuration=configuration,
                storage_options=location.storage_options,
                commit_properties=CommitProperties(max_commit_retries=0),
                raise_if_key_not_exists=False,
            )
        except CommitFailedError:
            if not DeltaTable.is_deltatable(location.table_path(table), location.storage_options):
                raise


def disk_error(location: LakeLocation, error: BaseException) -> DiskError | None:
    """Returns the meaning of a disk's error; None for any other error."""
    refusal = disk_refusal(error) if location.is_local else None
    return None if refusal is None else DiskError(f"the disk of the lake {location.path} {refusal}")


def missing(lake_path: str, table: str) -> MissingTableError:
    """Returns the error of a missing table."""
    return MissingTableError(
        f"the table {table} of the lake {lake_path} is missing; {RESTORE_HINT}", "is missing"
    )


def _unreadable(lake_path: str, table: str, error: BaseException) -> BrokenLakeError:
    problem = f"cannot be read: {_first_line(error)}"
    return BrokenLakeError(
        f"the table {table} of the lake {lake_path} {problem}; {RESTORE_HINT}", problem
    )


def _first_line(error: BaseException) -> str:
    lines = innermost(str(error)).splitlines() or [type(error).__name__]
    return lines[0][:_MESSAGE_MAX]
