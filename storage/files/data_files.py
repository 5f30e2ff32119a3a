"""Write the files of a table: by a Spark task, by the driver or by maintenance, in one way.

A file counts once a commit names it. Readers never see what a task that failed, or ran twice, has
written; VACUUM deletes it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from storage.errors import LakeError
from storage.files.order import DUE_GROUP_ROWS, kind_of
from storage.files.place import LakePlace

# Columns with statistics: those that prune.
STATISTICS: Final = {
    "half": "queue_id,queue_offset,epoch,transaction_id",
    "schedule": "queue_id,queue_offset,epoch",
    "topics": "queue_id,queue_offset,epoch,stored_at",
}
# Messages are read by their places, a few among many: a reader skips groups of rows.
GROUP_ROWS: Final = {"half": 4_096, "schedule": DUE_GROUP_ROWS, "topics": 4_096}
# Columns whose values rarely repeat: a dictionary of them takes memory and time.
_UNIQUE = {"queue_offset", "half_queue_offset", "transaction_id", "keys", "born_at", "body"}
_NESTED = ["properties.key_value.key", "properties.key_value.value"]
# A reader has a few groups in memory at a time.
GROUP_BYTES: Final = 4 * 1024 * 1024
# How long a task's file can take to be seen here: some file systems, NFS among them, have caches.
VISIBLE_S = 10.0
_LOOK_S = 0.1
_TEXT_MAX = 128  # characters of a text with statistics: transaction ids are at most so long


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as a commit names it. `path`: below the table; `stats`: Delta's JSON."""

    path: str
    size_bytes: int
    rows: int
    row_bytes: int  # as Arrow counts them
    stats: str

    def added(self, *, is_data_change: bool = True) -> AddAction:
        """Returns what a commit says of it."""
        now_ms = time.time_ns() // 1_000_000
        return AddAction(self.path, self.size_bytes, {}, now_ms, is_data_change, self.stats)


def new_name(epoch: int) -> str:
    """Returns a new name, different from all others."""
    return f"epoch-{epoch:09d}-{uuid.uuid4().hex}.parquet"


def write_file(
    place: LakePlace,
    table: str,
    name: str,
    rows: pa.Table,
    *,
    group_rows: int = 0,
    compression: str = "snappy",
    compression_level: int | None = None,
) -> DataFile:
    """Writes rows into one new file of a table.

    Input: rows of the table's schema; how many of them a row group has (0: as the table wants it).
    """
    narrow = [field.name for field in rows.schema if _has_order(field.type)]
    most = GROUP_ROWS.get(kind_of(table)) or rows.num_rows
    in_bytes = GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)
    with place.filesystem(table).open_output_stream(name) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=group_rows or max(1, min(most, in_bytes)),
            use_dictionary=[n for n in rows.schema.names if n not in _UNIQUE] + _NESTED,
            compression=compression,
            compression_level=compression_level,
            write_statistics=narrow,
            store_schema=False,
        )
        size = int(stream.tell())
    return DataFile(name, size, rows.num_rows, rows.nbytes, _statistics(table, rows))


def require_there(place: LakePlace, table: str, files: Sequence[DataFile]) -> None:
    """Checks that files are there: VACUUM deletes old ones that no commit names.

    Errors: LakeError; the epoch is landed again by the next start.
    """
    filesystem = place.filesystem(table)
    missing, patience = list(files), time.monotonic() + VISIBLE_S
    while missing:
        found = filesystem.get_file_info([file.path for file in missing])
        missing = [
            file for file, info in zip(missing, found, strict=True)
            if info.type != pa_fs.FileType.File or info.size != file.size_bytes
        ]  # fmt: skip
        if missing and time.monotonic() > patience:
            raise LakeError(
                f"the file {missing[0].path} of the table {table} of {place.path} was written "
                f"for an epoch and is not there after {VISIBLE_S:.0f} s: nothing is lost, "
                "start again; if maintenance has deleted it, a longer "
                "maintenance.file_retention_ms keeps it"
            )
        if missing:
            time.sleep(_LOOK_S)


def _statistics(table: str, rows: pa.Table) -> str:
    """Returns a file's statistics as Delta's log has them."""
    kept = STATISTICS.get(kind_of(table), ",".join(rows.schema.names)).split(",")
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        if field.name not in kept or not _has_order(field.type):
            continue
        column = rows[field.name]
        nulls[field.name] = column.null_count
        bounds = None if pa.types.is_boolean(field.type) else _bounds(column)
        if bounds is not None:
            least[field.name], most[field.name] = bounds
    return json.dumps(
        {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    )


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    if column.null_count == len(column):
        return None
    found = pc.min_max(column).as_py()
    low, high = found["min"], found["max"]
    if pa.types.is_timestamp(column.type):
        return tuple(at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for at in (low, high))
    if isinstance(high, str) and max(len(low), len(high)) > _TEXT_MAX:
        return None
    return low, high


def _has_order(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))
