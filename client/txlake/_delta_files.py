"""A Delta table as a list of Parquet files, for readers that read little and often.

The handle is kept and brought up to date, which takes about 1 ms when nothing is new; on a store
one request, for the entry of the log that comes next. The log's statistics say which files are
worth opening. Only plain tables are read: the lake's tables have neither deletion vectors nor
column mapping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from txlake._committed import lost_file
from txlake._delta_handle import DeltaHandle, file_stats, files_of
from txlake._delta_log import entry_name
from txlake._disk import disk_refusal
from txlake._paths import is_in_store
from txlake._store import StoreFiles, pool_options, store_trouble
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
        trouble = store_trouble(uri, lake, error)
        if trouble is not None:
            raise trouble from error

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


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table: its size, and the smallest and largest values of its columns."""

    path: str
    size_bytes: int
    row_count: int
    min_values: Mapping[str, Any]
    max_values: Mapping[str, Any]


class DeltaFiles:
    """One table's newest snapshot: `files` are its files by path."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None, statistics: Sequence[str] = ()
    ) -> None:
        self.uri = uri
        self.files: dict[str, TableFile] = {}

        self._storage_options = pool_options(uri, storage_options)
        self._statistics = tuple(statistics)

        self._handle = DeltaHandle(uri, self._storage_options)
        self.logged = pa.table({})  # the files as the log has them
        self._version_seen = -1
        self._schema: pa.Schema | None = None
        self._in_store: StoreFiles | None = None
        self._list_at = 0.0

    @property
    def table(self) -> DeltaTable:
        """Returns the handle of the snapshot. Errors: LakeError before the table exists."""
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

        before = self._handle.table
        try:
            table = self._handle.newest()
        except TableNotFoundError:
            self._forget()
            self.files = {}
            self.logged = pa.table({})
            return False

        version = table.version()
        self._list_at = time.monotonic() + _SURE_S
        # A handle that was opened anew can be of another table, which is at the same version.
        if table is before and version == self._version_seen:
            return False

        reader_version = table.protocol().min_reader_version
        if reader_version > 1:
            raise LakeError(f"{self.uri}: Delta reader version {reader_version}, this SDK reads 1")

        self.logged = files_of(table)
        self.files = _files(self.logged, self._statistics)
        self._schema = pa.schema(table.schema().to_arrow())
        self._in_store = None  # it knows the sizes of the files before
        self._version_seen = version
        return True

    def _forget(self) -> None:
        """Drops the handle: the next snapshot is read from the log's last checkpoint."""
        self._handle.forget()
        self._version_seen = -1

    def _is_newest(self) -> bool:
        """Returns whether the log surely has nothing newer; False when only listing it would show.

        A topic's log has the entries of a week: listing them takes long on a local disk, and on a
        store it is the dearest request.
        """
        table = self._handle.table
        if table is None or table.version() != self._version_seen:
            return False

        if not self._is_local():
            return time.monotonic() < self._list_at and not self._stored().has_next()
        return self._handle.is_newest()

    def missing_file(self) -> str | None:
        """Returns a local file of the snapshot that is gone or has another size, or None."""
        return lost_file(self.logged, self._filesystem()) if self._is_local() else None

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

        Errors: those in STALE_SNAPSHOT when a file is gone: refresh with `from_checkpoint`, try
        again.
        """
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
            after = f"_delta_log/{entry_name(self._version_seen + 1)}"
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
            columns["num_records"][row] or 0,
            {name: columns[f"min.{name}"][row] for name in statistics},
            {name: columns[f"max.{name}"][row] for name in statistics},
        )
        for row, path in enumerate(columns["path"])
    }
