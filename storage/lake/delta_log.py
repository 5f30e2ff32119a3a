"""The log of a table, written entry by entry: each is made only where the log has none of its name.

delta-rs lists the log before a commit and after it, and reads back what it has written: on S3 that
is five requests, one after another. A driver knows what the newest version is, so it writes the
next one: by a conditional PUT (`If-None-Match: *`) on S3, by a hard link on a disk. Both refuse
what is there already, and both are what delta-rs does itself.

Source: Delta's protocol, "Add File", "Transaction Identifiers", "Commit Provenance Information".
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import obstore
import pyarrow as pa
from deltalake import DeltaTable
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from storage.errors import StoreAwayError
from storage.files.data_files import DataFile
from storage.files.location import LakeLocation
from storage.files.s3_client import s3_client
from storage.lake.store_error import store_error
from txlake._delta_log import entry_name, version_of

# Up to this writer version of Delta our entries are complete. Later ones can ask a writer for more:
# checks of constraints, a change feed.
_WRITER_VERSION_MAX = 2


class LogEntries(ABC):
    """One table's log, to which entries are appended."""

    def __init__(self, table: str) -> None:
        self._table = table

    def append_entry(self, version: int, entry: bytes) -> bool:
        """Writes the entry of a version, unless the log has that version or a later one.

        A driver that was suspended until another had cleaned up the log finds no entry of its
        version, and writes one that nobody reads. So the log of `epochs`, whose rows begin and end
        an epoch, is listed afterwards.
        Output: False if another has written that version, or a later one.
        Errors: those of a disk; StoreRefusedError, StoreAwayError. The entry may have been written.
        """
        is_new = self._create(entry_name(version), entry)
        return is_new and (self._table != "epochs" or not self._has_newer(version))

    def _has_newer(self, version: int) -> bool:
        """Returns whether the log has an entry or a checkpoint of a later version."""
        versions = map(version_of, self._names(entry_name(version)))
        return any(listed is not None and listed > version for listed in versions)

    @abstractmethod
    def _create(self, name: str, entry: bytes) -> bool:
        """Makes a file of the log. Output: False if there is one of that name."""

    @abstractmethod
    def _names(self, after: str) -> Iterator[str]:
        """Returns the names of the log's files; those up to `after` may be missing."""


class FolderEntries(LogEntries):
    """A log on a disk. Input: the table's folder."""

    def __init__(self, table: str, path: str) -> None:
        super().__init__(table)
        self._folder = os.path.join(path, "_delta_log")

    def _create(self, name: str, entry: bytes) -> bool:
        # A name that begins with no version: what a crash leaves is no entry to any reader.
        draft = os.path.join(self._folder, f"_commit_{uuid.uuid4()}.json.tmp")
        try:
            with open(draft, "xb") as file:
                file.write(entry)
            os.link(draft, os.path.join(self._folder, name))
            return True
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft)

    def _names(self, after: str) -> Iterator[str]:
        with os.scandir(self._folder) as files:
            for file in files:
                yield file.name


class StoreEntries(LogEntries):
    """A log in an object store."""

    def __init__(self, table: str, location: LakeLocation, client: S3Store) -> None:
        super().__init__(table)
        self._location = location
        self._client = client
        self._folder = f"{table}/_delta_log"

    def _create(self, name: str, entry: bytes) -> bool:
        path = f"{self._folder}/{name}"
        try:
            obstore.put(self._client, path, entry, mode="create", use_multipart=False)
            return True
        except AlreadyExistsError:
            return False
        except BaseError as error:
            raise self._translated(error) from error

    def _names(self, after: str) -> Iterator[str]:
        try:
            for entries in obstore.list(
                self._client, self._folder, offset=f"{self._folder}/{after}"
            ):
                for entry in entries:
                    yield entry["path"].rpartition("/")[2]
        except BaseError as error:
            raise self._translated(error) from error

    def _translated(self, error: BaseError) -> Exception:
        return store_error(self._location, error) or StoreAwayError(
            f"{self._location.path}: {error}"
        )


def log_entries(location: LakeLocation, table: str) -> LogEntries | None:
    """Returns a table's log; None if delta-rs has to write it, since there is no `s3_client`."""
    if location.is_local:
        return FolderEntries(table, location.table_path(table))

    client = s3_client(location)
    return None if client is None else StoreEntries(table, location, client)


def is_supported(handle: DeltaTable) -> bool:
    """Returns whether our entries are all that a writer of this table has to write."""
    protocol = handle.protocol()
    return protocol.min_writer_version <= _WRITER_VERSION_MAX and not protocol.writer_features


def commit_json(files: Sequence[DataFile], app_id: str, transaction: int, epoch: int) -> bytes:
    """Returns the entry that adds files with a transaction identifier."""
    now_ms = time.time_ns() // 1_000_000

    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "isBlindAppend": True,
        "engineInfo": "txlake",
        "txlake.epoch": str(epoch),
    }

    adds = [
        {
            "path": file.path,
            "partitionValues": {},
            "size": file.size_bytes,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": file.stats,
        }
        for file in files
    ]

    actions: list[dict[str, Any]] = [
        {"commitInfo": info},
        {"txn": {"appId": app_id, "version": transaction, "lastUpdated": now_ms}},
        *({"add": add} for add in adds),
    ]
    return "\n".join(map(json.dumps, actions)).encode()


def with_added(files: pa.Table, added: Sequence[DataFile]) -> pa.Table:
    """Returns the files of a version, and those that our later entries have added."""
    if not added:
        return files

    rows = [_row(file) for file in added]
    names = [name for name in files.column_names if any(name in row for row in rows)]

    columns = []
    for name in names:
        values = pa.array([row.get(name) for row in rows])
        columns.append(values.cast(files.schema.field(name).type))

    return pa.concat_tables([files, pa.table(columns, names)], promote_options="default")


def _row(file: DataFile) -> dict[str, Any]:
    """Returns a file as delta-rs lists it."""
    stats = json.loads(file.stats)
    row = {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "modification_time": 0,
        "num_records": file.rows,
    }

    for prefix, key in (("null_count", "nullCount"), ("min", "minValues"), ("max", "maxValues")):
        row |= {f"{prefix}.{name}": value for name, value in stats[key].items()}

    return row
