"""Write the files of a table: by a Spark task, by the driver or by maintenance, in one way.

A file counts once a commit names it. Readers never see what a task that failed, or ran twice, has
written; VACUUM deletes it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from storage.errors import LakeError
from storage.files.location import LakeLocation
from storage.files.order import DUE_GROUP_ROWS, table_kind

# Columns with statistics: those that prune.
STATISTICS: Final = {
    "half": "queue_id,queue_offset,epoch,transaction_id",
    "schedule": "queue_id,queue_offset,epoch",
    "topics": "queue_id,queue_offset,epoch,stored_at",
}
# Messages are read by their row keys, a few among many: a reader skips groups of rows.
GROUP_ROWS: Final = {"half": 4_096, "schedule": DUE_GROUP_ROWS, "topics": 4_096}
# Columns whose values rarely repeat: a dictionary of them takes memory and time.
_UNIQUE = {"queue_offset", "half_queue_offset", "transaction_id", "keys", "born_at", "body"}
_NESTED = ["properties.key_value.key", "properties.key_value.value"]
# A reader has a few groups in memory at a time.
GROUP_BYTES: Final = 4 * 1024 * 1024
# It takes half of Snappy's time for JSON bodies, and its files are no larger. Bytes that cannot be
# compressed take neither any time (DECISIONS.md 2).
_QUICK_ZSTD: Final = -3
# Each column has a context of zstd: with few rows these take longer than the rows.
_SNAPPY_BYTES: Final = 256 * 1024
# How long a task's file can take to be seen here: some file systems, NFS among them, have caches.
VISIBLE_S = 10.0
_PAUSE_S = 0.1
_TEXT_MAX = 128  # characters of a text with statistics: the limit of transaction ids


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as a commit names it. `path`: below the table; `stats`: Delta's JSON."""

    path: str
    size_bytes: int
    rows: int
    row_bytes: int  # as Arrow counts them
    stats: str

    def add_action(self, *, is_data_change: bool = True) -> AddAction:
        """Returns the action by which a commit adds it."""
        now_ms = time.time_ns() // 1_000_000
        return AddAction(self.path, self.size_bytes, {}, now_ms, is_data_change, self.stats)


def new_name(epoch: int) -> str:
    """Returns a new name, different from all others."""
    return f"epoch-{epoch:09d}-{uuid.uuid4().hex}.parquet"


class FileWriter:
    """One new file of a table, whose rows come in parts; each part is written when it comes.

    Input: `first`: the part to be written first: its schema is the file's, and by its size the file
    is compressed; `zstd_level`: how well, unless it is small.
    """

    def __init__(
        self,
        location: LakeLocation,
        table: str,
        name: str,
        first: pa.Table,
        zstd_level: int = _QUICK_ZSTD,
    ) -> None:
        schema = first.schema
        is_small = first.nbytes < _SNAPPY_BYTES

        self._table = table
        self._name = name
        self._rows = 0
        self._row_bytes = 0

        self._statistics = Statistics(table, schema)
        self._stream = location.filesystem(table).open_output_stream(name)
        self._parquet = pq.ParquetWriter(
            self._stream,
            schema,
            use_dictionary=[n for n in schema.names if n not in _UNIQUE] + _NESTED,
            write_statistics=[field.name for field in schema if _has_order(field.type)],
            store_schema=False,
            compression="snappy" if is_small else "zstd",
            compression_level=None if is_small else zstd_level,
        )

    def write(self, rows: pa.Table, group_rows: int = 0) -> None:
        """Writes a part. Input: `group_rows`: rows of a row group; 0: the table's number."""
        size = rows.nbytes
        group_rows_max = group_rows or _group_rows(self._table, rows.num_rows, size)
        with self._abandon_on_error():
            self._parquet.write_table(rows, group_rows_max)

        self._statistics.add(rows)
        self._rows += rows.num_rows
        self._row_bytes += size

    def close(self) -> DataFile:
        """Ends the file. Output: the file as a commit names it."""
        with self._abandon_on_error():
            self._parquet.close()
            size = int(self._stream.tell())
            self._stream.close()

        return DataFile(self._name, size, self._rows, self._row_bytes, self._statistics.as_json())

    @contextlib.contextmanager
    def _abandon_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._parquet.is_open = False  # it would try once more when it is collected
            raise


def write_file(
    location: LakeLocation,
    table: str,
    name: str,
    rows: pa.Table,
    group_rows: int = 0,
    zstd_level: int = _QUICK_ZSTD,
) -> DataFile:
    """Writes rows into one new file of a table.

    Input: rows of the table's schema; `group_rows`, `zstd_level`: as of `FileWriter`.
    """
    file = FileWriter(location, table, name, rows, zstd_level)
    file.write(rows, group_rows)
    return file.close()


def _group_rows(table: str, rows: int, size: int) -> int:
    """Returns how many rows a row group has: groups of equal size, none of them too large."""
    maximum = min(GROUP_ROWS.get(table_kind(table), rows), GROUP_BYTES * rows // max(size, 1))
    groups = -(-rows // max(1, maximum))

    return -(-rows // max(1, groups)) or 1


def require_visible(location: LakeLocation, table: str, files: Sequence[DataFile]) -> None:
    """Checks that files exist: VACUUM deletes old ones that no commit names.

    Errors: LakeError; the epoch is landed again by the next start.
    """
    filesystem = location.filesystem(table)
    missing = list(files)
    deadline = time.monotonic() + VISIBLE_S

    while missing:
        infos = filesystem.get_file_info([file.path for file in missing])
        missing = [
            file
            for file, info in zip(missing, infos, strict=True)
            if info.type != pa_fs.FileType.File or info.size != file.size_bytes
        ]

        if missing and time.monotonic() > deadline:
            raise LakeError(
                f"the file {missing[0].path} of the table {table} of {location.path} was written "
                f"for an epoch and is not there after {VISIBLE_S:.0f} s: nothing is lost, "
                "start again; if maintenance has deleted it, a longer "
                "maintenance.file_retention_ms keeps it"
            )

        if missing:
            time.sleep(_PAUSE_S)


class Statistics:
    """A file's statistics as Delta's log has them, of rows that come in parts."""

    def __init__(self, table: str, schema: pa.Schema) -> None:
        names = STATISTICS.get(table_kind(table), ",".join(schema.names)).split(",")

        self._rows = 0
        self._nulls = {
            field.name: 0 for field in schema if field.name in names and _has_order(field.type)
        }
        self._has_bounds = {n for n in self._nulls if not pa.types.is_boolean(schema.field(n).type)}
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, rows: pa.Table) -> None:
        """Takes a part."""
        self._rows += rows.num_rows

        for name in self._nulls:
            column = rows[name]
            self._nulls[name] += column.null_count

            if name in self._has_bounds and column.null_count < len(column):
                of_part = pc.min_max(column).as_py()
                low, high = self._bounds.get(name, (of_part["min"], of_part["max"]))
                self._bounds[name] = min(low, of_part["min"]), max(high, of_part["max"])

    def as_json(self) -> str:
        """Returns the statistics as Delta's JSON; bounds of long texts are left out."""
        bounds = {name: pair for name, pair in self._bounds.items() if not _is_long(pair)}

        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {name: _as_json_value(low) for name, (low, _) in bounds.items()},
                "maxValues": {name: _as_json_value(high) for name, (_, high) in bounds.items()},
                "nullCount": self._nulls,
            }
        )


def _is_long(bounds: tuple[Any, Any]) -> bool:
    return isinstance(bounds[0], str) and max(map(len, bounds)) > _TEXT_MAX


def _as_json_value(value: Any) -> Any:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, dt.datetime) else value


def _has_order(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))
