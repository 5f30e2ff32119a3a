"""A Delta table as a list of Parquet files: what a reader needs that reads little and often.

A handle is kept and brought up to date (about 1 ms when nothing is new); the log's statistics
say which files are worth opening. Only plain tables are read: no deletion vectors, no column
mapping; the lake has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from txlake.errors import LakeError

# A file that VACUUM or OPTIMIZE took away while it was read, or a log cut short by its clean-up.
STALE_SNAPSHOT = (DeltaError, OSError, pa.ArrowException, UnicodeDecodeError)
_VERSION_DIGITS = 20  # of a log file's name


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Turn what is wrong with a table, and stays so, into one sentence. Errors: LakeError."""
    try:
        yield
    except STALE_SNAPSHOT as error:
        lake, table = split(uri)
        raise LakeError(
            f"{lake}: the table {table} cannot be read: {first_line(error)}; put it back from a "
            "copy, or `txlake verify` says what else is wrong"
        ) from error


def split(uri: str) -> tuple[str, str]:
    """Return the lake that a table is in, and the table's name there."""
    folder, _, name = uri.rpartition("/")
    if folder.endswith("/topics"):
        return folder.removesuffix("/topics"), f"topics/{name}"
    return folder, name


def first_line(error: BaseException) -> str:
    """Return what an error says first: others' errors have many lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table: how large, and between which values its columns lie."""

    path: str
    size_bytes: int
    row_count: int
    least: Mapping[str, Any]
    most: Mapping[str, Any]


class DeltaFiles:
    """Keep one table's newest snapshot."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None, statistics: Sequence[str] = ()
    ) -> None:
        self.uri = uri
        self._storage_options = dict(storage_options or {})
        self._statistics = tuple(statistics)
        self._table: DeltaTable | None = None
        self._version_seen = -1
        self._files: dict[str, TableFile] = {}
        self._schema: pa.Schema | None = None

    @property
    def table(self) -> DeltaTable:
        """Return the handle of the snapshot. Errors: LakeError before the table exists."""
        if self._table is None:
            raise LakeError(f"{self.uri}: no table is there")
        return self._table

    @property
    def exists(self) -> bool:
        """Return whether the table was there at the last refresh."""
        return self._table is not None

    @property
    def files(self) -> dict[str, TableFile]:
        """Return the snapshot's files by path."""
        return self._files

    def refresh(self, is_afresh: bool = False) -> bool:
        """Take the newest snapshot; say whether it is another. A missing table has no files.

        `is_afresh` reads the log from its last checkpoint instead of from where we stand.
        """
        if is_afresh:
            self._table, self._version_seen = None, -1
        if self._table is not None:
            if self._is_newest(self._table.version()):
                return False
            try:
                self._table.update_incremental()
            except DeltaError:
                self._table = None
        if self._table is None:
            try:
                self._table = self._open()
            except TableNotFoundError:
                self._files, self._version_seen = {}, -1
                return False
        version = self._table.version()
        if version == self._version_seen:
            return False
        self._check_protocol(self._table)
        self._files = _files(self._table, self._statistics)
        self._schema = pa.schema(self._table.schema().to_arrow())
        self._version_seen = version
        return True

    def _is_newest(self, version: int) -> bool:
        """Return whether the log has nothing newer, if that can be said without listing it.

        Listing takes 0.6 us an entry on a local disk, and a topic's log has those of a week. Where
        a clean-up has deleted the entry we stand at, the next one may be gone, too.
        """
        if version != self._version_seen or not self._is_local():
            return False
        log = Path(self.uri) / "_delta_log"
        here, after = (log / f"{n:0{_VERSION_DIGITS}}.json" for n in (version, version + 1))
        return here.exists() and not after.exists()

    def _open(self) -> DeltaTable:
        """Open the table.

        delta-rs panics over some damaged checkpoints, and prints that; Arrow finds the same damage
        and prints nothing, so it looks first.
        """
        if self._is_local():
            found = sorted((Path(self.uri) / "_delta_log").glob("*.checkpoint*.parquet"))
            for part in found:
                if part.name[:_VERSION_DIGITS] == found[-1].name[:_VERSION_DIGITS]:
                    pq.ParquetFile(part, memory_map=True).read(use_threads=False)
        try:
            return DeltaTable(self.uri, storage_options=self._storage_options or None)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise DeltaError(f"its log cannot be read: {first_line(error)}") from None

    def missing_file(self) -> str | None:
        """Name a file of the snapshot that is not there, or has another size. Local files only."""
        if not self._is_local():
            return None
        found = self._filesystem().get_file_info(list(self._files))
        for info, file in zip(found, self._files.values(), strict=True):
            if info.type != pa_fs.FileType.File or info.size != file.size_bytes:
                return file.path
        return None

    def dataset(self, paths: Iterable[str]) -> ds.Dataset:
        """Make a dataset of some of the snapshot's files.

        Errors: those in STALE_SNAPSHOT when a file is gone: refresh afresh and try again.
        """
        filesystem = self._filesystem()
        parquet = ds.ParquetFileFormat()
        fragments = [parquet.make_fragment(path, filesystem=filesystem) for path in paths]
        return ds.FileSystemDataset(fragments, self._schema, parquet, filesystem)

    def _is_local(self) -> bool:
        return os.path.isdir(self.uri)

    def _filesystem(self) -> pa_fs.FileSystem:
        if self._is_local():
            return pa_fs.SubTreeFileSystem(self.uri, pa_fs.LocalFileSystem())
        sizes = {file.path: file.size_bytes for file in self._files.values()}
        handler = DeltaStorageHandler(self.uri, self._storage_options, sizes)
        return pa_fs.PyFileSystem(handler)

    def _check_protocol(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        if protocol.min_reader_version > 1:
            raise LakeError(
                f"{self.uri}: Delta reader version {protocol.min_reader_version}, this SDK reads 1"
            )


def _files(table: DeltaTable, statistics: Sequence[str]) -> dict[str, TableFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
    nothing = [None] * actions.num_rows
    counts = columns.get("num_records", nothing)
    return {
        path: TableFile(
            path,
            columns["size_bytes"][row],
            counts[row] or 0,
            {name: columns.get(f"min.{name}", nothing)[row] for name in statistics},
            {name: columns.get(f"max.{name}", nothing)[row] for name in statistics},
        )
        for row, path in enumerate(columns["path"])
    }
