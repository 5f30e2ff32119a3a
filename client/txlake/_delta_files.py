"""A Delta table as a list of Parquet files, for readers that read little and often.

Entries of the log in which the lake's driver has appended files are read here; delta-rs reads all
others, and what is in a store. A look for news where there are none is one for a file, on a store
one request. The log's statistics say which files are worth opening. Only plain tables are read: the
lake's tables have neither deletion vectors nor column mapping.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from txlake._committed import lost_file
from txlake._delta_handle import DeltaHandle, file_stats, files_of
from txlake._delta_log import (
    TableFile,
    appended_files,
    driver_id,
    entry_name,
    entry_path,
    is_newest,
    lake_id_of,
)
from txlake._disk import disk_refusal
from txlake._paths import is_in_store
from txlake._store import StoreFiles, pool_options, store_error
from txlake.errors import LakeError

# What is raised when VACUUM takes a file away while it is read, or a clean-up cuts the log short.
STALE_SNAPSHOT = (DeltaError, OSError, pa.ArrowException, UnicodeDecodeError)

# How long a request for the next entry is enough: a clean-up of the log can have deleted that.
_SURE_S = 10.0
_TRIES_MAX = 5

_ResultT = TypeVar("_ResultT")


@contextmanager
def translating_errors(uri: str) -> Iterator[None]:
    """Turns an error of a table that another try does not mend into one sentence.

    Errors: LakeError; StoreAwayError.
    """
    try:
        yield
    except STALE_SNAPSHOT as error:
        lake, table = split(uri)
        translated = store_error(uri, lake, error)
        if translated is not None:
            raise translated from error

        refusal = None if is_in_store(uri) else disk_refusal(error)
        if refusal is not None:
            raise LakeError(f"{lake}: its disk {refusal}") from error

        raise LakeError(
            f"{lake}: the table {table} cannot be read: {first_line(error)}; put it back from a "
            "copy, or `txlake verify` says what else is wrong"
        ) from error


def split(uri: str) -> tuple[str, str]:
    """Returns the lake that a table is in, and the table's name there."""
    folder, _, name = uri.rpartition("/")
    if folder.endswith("/topics"):
        return folder.removesuffix("/topics"), f"topics/{name}"
    return folder, name


def first_line(error: BaseException) -> str:
    """Returns the first line of an error: errors of other libraries have many."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


class DeltaFiles:
    """One table's newest snapshot: its files by path, and its version; -1 without a table.

    Input: `statistics`: the columns, all of whole numbers, whose bounds are wanted.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None, statistics: Sequence[str] = ()
    ) -> None:
        self.uri = uri
        self.files: dict[str, TableFile] = {}
        self.version = -1

        self._storage_options = pool_options(uri, storage_options)
        self._statistics = tuple(statistics)

        self._handle = DeltaHandle(uri, self._storage_options)
        self._driver_id = ""
        self._schema: pa.Schema | None = None
        self._in_store: StoreFiles | None = None
        self._list_at = 0.0
        self._next_entry: str | None = None  # of the log of a local table

    @property
    def table(self) -> DeltaTable:
        """Returns delta-rs's handle: of the snapshot, or of one with fewer of the driver's appends.

        Errors: LakeError before the table exists.
        """
        table = self._handle.table
        if table is None:
            raise LakeError(f"{self.uri}: there is no table")
        return table

    @property
    def exists(self) -> bool:
        """Returns whether the table was there at the last refresh."""
        return self._handle.table is not None

    def refresh(self, from_checkpoint: bool = False) -> bool:
        """Takes the newest snapshot. Output: whether it is another. A missing table has no files.

        `from_checkpoint`: the log is read from its last checkpoint, and not from the version that
        was read before.
        """
        if from_checkpoint:
            self._forget()

        if self._is_newest():
            return False
        is_longer = self._read_appends()
        if is_longer and self._is_newest():
            return True

        before = self._handle.table
        try:
            table = self._handle.newest()
        except TableNotFoundError:
            self._forget()
            self.files = {}
            return False

        version = table.version()
        self._list_at = time.monotonic() + _SURE_S
        # A handle that was opened anew can be of another table, which is at the same version.
        if table is before and version == self.version:
            return is_longer

        reader_version = table.protocol().min_reader_version
        if reader_version > 1:
            raise LakeError(f"{self.uri}: Delta reader version {reader_version}, this SDK reads 1")

        self.files = _files(files_of(table), self._statistics)
        self._driver_id = driver_id(lake_id_of(table))
        self._schema = pa.schema(table.schema().to_arrow())
        self._in_store = None  # it knows the sizes of the files before
        self._take(version)
        return True

    def may_have_news(self) -> bool:
        """Returns False if a look for one name shows that the table has no newer version.

        A clean-up of the log can delete that entry, so now and then only `refresh` is sure. On a
        store, and without a table, it returns True.
        """
        return self._next_entry is None or os.path.exists(self._next_entry)

    def _read_appends(self) -> bool:
        """Adds the files of the next entries while these are appends of the lake's driver.

        delta-rs takes 6 ms for one entry where there are 10 files, and 140 where there are 500
        (DECISIONS.md 32). Output: whether there was one.
        """
        if self.version < 0 or not self._is_local():
            return False

        version = self.version
        appends: list[list[TableFile]] = []
        while True:
            added = appended_files(self.uri, version + 1, self._driver_id, self._statistics)
            if added is None:
                break
            appends.append(added)
            version += 1

        if not appends:
            return False

        newest_first = {file.path: file for added in reversed(appends) for file in added}
        self.files = newest_first | self.files
        self._take(version)
        return True

    def _forget(self) -> None:
        """Drops the handle: the next snapshot is read from the log's last checkpoint."""
        self._handle.forget()
        self._take(-1)

    def _take(self, version: int) -> None:
        self.version = version
        is_known = version >= 0 and self._is_local()
        self._next_entry = entry_path(self.uri, version + 1) if is_known else None

    def _is_newest(self) -> bool:
        """Returns whether the log surely has nothing newer; False when only listing it would show.

        A topic's log has the entries of a week: listing them takes long on a local disk, and on a
        store it is the dearest request.
        """
        table = self._handle.table
        if table is None or table.version() > self.version:  # it was written through the handle
            return False

        if not self._is_local():
            return time.monotonic() < self._list_at and not self._stored().has_next()
        return is_newest(self.uri, self.version)

    def missing_file(self) -> str | None:
        """Returns a local file of the snapshot that is gone or has another size, or None."""
        return lost_file(self.as_table(), self._filesystem()) if self._is_local() else None

    def as_table(self) -> pa.Table:
        """Returns the files as `files_of` does: paths, sizes, rows, and the bounds asked for."""
        files = self.files.values()
        columns = {
            "path": pa.array([file.path for file in files], pa.string()),
            "size_bytes": pa.array([file.size_bytes for file in files], pa.int64()),
            "num_records": pa.array([file.row_count for file in files], pa.int64()),
        }

        for name in self._statistics:
            columns[f"min.{name}"] = pa.array([file.min_values[name] for file in files], pa.int64())
            columns[f"max.{name}"] = pa.array([file.max_values[name] for file in files], pa.int64())

        return pa.table(columns)

    def retry_stale(self, read: Callable[[], _ResultT]) -> _ResultT:
        """Returns the result of `read`, on a fresh snapshot when files of this one are gone.

        Errors: those of `read`; LakeError; StoreAwayError.
        """
        with translating_errors(self.uri):
            for _ in range(_TRIES_MAX - 1):
                try:
                    return read()
                except STALE_SNAPSHOT:
                    self.refresh(from_checkpoint=True)

            return read()

    def dataset(self, paths: Iterable[str]) -> ds.Dataset:
        """Returns a dataset of some of the snapshot's files.

        Errors: LakeError before the table exists; those in STALE_SNAPSHOT when a file is gone:
        refresh with `from_checkpoint`, try again.
        """
        if self._schema is None:  # without a schema Arrow ends the process
            raise LakeError(f"{self.uri}: there is no table")

        filesystem = self._filesystem()
        # In a store ranges that are fetched ahead are fewer requests; of a disk they are a copy.
        parquet = ds.ParquetFileFormat(pre_buffer=not self._is_local())
        fragments = [parquet.make_fragment(path, filesystem=filesystem) for path in paths]
        return ds.FileSystemDataset(fragments, self._schema, parquet, filesystem)

    def _is_local(self) -> bool:
        return not is_in_store(self.uri)

    def _filesystem(self) -> pa_fs.FileSystem:
        if self._is_local():
            return pa_fs.SubTreeFileSystem(self.uri, pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(self._stored())

    def _stored(self) -> StoreFiles:
        if self._in_store is None:
            sizes = {file.path: file.size_bytes for file in self.files.values()}
            after = f"_delta_log/{entry_name(self.version + 1)}"
            self._in_store = StoreFiles(self.uri, self._storage_options, sizes, after)
        return self._in_store


def _files(logged: pa.Table, statistics: Sequence[str]) -> dict[str, TableFile]:
    names = [f"{bound}.{name}" for bound in ("min", "max") for name in statistics]
    stats = file_stats(logged, ["path", "size_bytes", "num_records", *names])
    columns = {name: stats[name].to_pylist() for name in stats.column_names}

    return {
        path: TableFile(
            path,
            columns["size_bytes"][row],
            columns["num_records"][row],
            {name: columns[f"min.{name}"][row] for name in statistics},
            {name: columns[f"max.{name}"][row] for name in statistics},
        )
        for row, path in enumerate(columns["path"])
    }
