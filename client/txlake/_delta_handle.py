"""A table's newest version, as the SDK and the job both read it: a handle of delta-rs, its files.

delta-rs panics over some damaged checkpoints: its threads write to stderr, also if Python catches
the panic afterwards. Of 5,400 changes to checkpoints it panicked over 13, none of which Arrow could
read. So Arrow reads the newest one first: 3 ms where opening the table takes 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txlake._delta_log import has_entry, is_newest, version_of
from txlake._paths import file_name, is_in_store
from txlake._store_error import store_failure


class DeltaHandle:
    """A handle of one table, brought up to date when it is asked for.

    Input: the table's folder, or its URI in a store.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None) -> None:
        self._uri = uri
        self._storage_options = dict(storage_options or {})
        self._is_local = not is_in_store(uri)
        self._table: DeltaTable | None = None

    @property
    def table(self) -> DeltaTable | None:
        """Returns the handle as it was last brought up to date; None before the first time."""
        return self._table

    def forget(self) -> None:
        """Drops the handle: the next one is read from the log's last checkpoint."""
        self._table = None

    def newest(self) -> DeltaTable:
        """Returns the handle at the newest version.

        Errors: TableNotFoundError; DeltaError, OSError, ArrowException if the log cannot be read,
        or its store does not answer.
        """
        if self._table is not None and not self.is_newest() and not self._has_updated(self._table):
            self._table = None

        if self._table is None:
            self._table = self._open()
        return self._table

    def is_newest(self) -> bool:
        """Returns whether the log surely has nothing newer; in a store only a request tells."""
        if self._table is None or not self._is_local:
            return False
        return is_newest(self._uri, self._table.version())

    def _has_updated(self, table: DeltaTable) -> bool:
        """Brings a handle up to date. Output: False if its log is not there any more.

        It was cleaned up beyond the version of the handle, or the table was deleted: no clean-up
        deletes the newest entry.
        """
        try:
            table.update_incremental()
        except DeltaError as error:
            if not self._is_local and store_failure(error) is not None:
                raise
            return False

        return not self._is_local or has_entry(self._uri, table.version())

    def _open(self) -> DeltaTable:
        if self._is_local:
            _read_newest_checkpoint(self._uri)

        try:
            return DeltaTable(self._uri, storage_options=self._storage_options or None)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise DeltaError(str(error)) from None


def _read_newest_checkpoint(folder: str) -> None:
    """Reads the newest checkpoint of a table in a local folder, if it has one.

    Errors: ArrowException, OSError when it is damaged.
    """
    parts = sorted(Path(folder, "_delta_log").glob("*.checkpoint*.parquet"))
    for part in parts:
        if version_of(part.name) == version_of(parts[-1].name):
            pq.ParquetFile(part, memory_map=True).read(use_threads=False)


def is_panic(error: BaseException) -> bool:
    """Returns whether an error is a panic of delta-rs, which has no class to import."""
    return type(error).__name__ == "PanicException"


def files_of(handle: DeltaTable) -> pa.Table:
    """Returns the files of a table's version, as delta-rs lists them, by their own names."""
    files = pa.table(handle.get_add_actions(flatten=True))
    logged = files["path"]
    if not pc.any(pc.match_substring(logged, "%")).as_py():  # ours never are: epochs ask often
        return files

    names = pa.array(map(file_name, logged.to_pylist()), pa.string())
    return files.set_column(files.column_names.index("path"), "path", names)


def file_stats(files: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns columns of a table's files, as its log has them; null where it has none."""
    nulls = pa.nulls(files.num_rows)
    logged = files.column_names

    return pa.table({name: files[name] if name in logged else nulls for name in names})
