"""Merge some files of a table into one: the same rows, sorted, in one Delta commit.

1. Read the files, the oldest first, while their rows fit into memory.
2. Sort as the table's files are (`file_order`): what is read together stands together.
3. Write one file, in row groups small enough to skip.
4. Commit: the new file in, the old ones out, `dataChange` false.

A crash before 4 leaves a file that nothing refers to; VACUUM deletes it. The commit is made on the
version that was read, or not at all: another writer's commit makes it fail, and nothing happened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties
from deltalake.transaction import AddAction, RemoveAction

from storage.file_order import DUE_GROUP_ROWS, in_file_order, kind_of
from storage.kafka_rows import SCHEDULE
from storage.lake import NO_LOG_UPKEEP, STATISTICS, Lake
from storage.merge_plan import TableFile, merged_name

_GROUP_ROWS = (1_000, 65_536)
_GROUP_BYTES = 4 * 1024 * 1024  # a consumer's window is a few of these
_TEXT_MAX = 128  # longer texts have no statistics; transaction ids are at most so long


@dataclass(frozen=True)
class Merged:
    """What a merge did."""

    files_before: int
    bytes_before: int
    bytes_after: int


def files_of(lake: Lake, table: str) -> list[TableFile]:
    """Give the files of a table's newest version."""
    actions = pa.table(lake.handle(table).get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return []
    names = ["path", "size_bytes", "num_records", "min.epoch"]
    columns = [
        actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows
        for name in names
    ]
    return [
        TableFile(path, size, rows or 0, epoch or 0)
        for path, size, rows, epoch in zip(*columns, strict=True)
    ]


def merge(
    lake: Lake, table: str, files: Sequence[TableFile], memory_bytes_max: int
) -> Merged | None:
    """Merge files, as many of the oldest as fit into memory. Output: None when not even two do.

    Errors: CommitFailedError from deltalake when another writer was faster.
    """
    rows, taken = _read(lake, table, files, memory_bytes_max)
    if len(taken) < 2:
        return None
    rows = in_file_order(table, rows)
    name = merged_name(taken, is_closed=2 * rows.nbytes > memory_bytes_max)  # two would not fit
    size = _write(lake, table, name, rows)
    added = AddAction(name, size, {}, _now_ms(), False, _statistics(table, rows))
    _commit(lake, table, added, taken)
    return Merged(len(taken), sum(file.size_bytes for file in taken), size)


def _read(
    lake: Lake, table: str, files: Sequence[TableFile], bytes_max: int
) -> tuple[pa.Table, list[TableFile]]:
    schema = lake.schema(table)
    listed = pa.table(
        {"path": [f.path for f in files], "size_bytes": [f.size_bytes for f in files]}
    )
    filesystem = lake.filesystem(table, listed)
    parquet = ds.ParquetFileFormat()
    batches: list[pa.RecordBatch] = []
    taken: list[TableFile] = []
    size = 0
    for file in files:
        fragment = parquet.make_fragment(file.path, filesystem=filesystem)
        found = []
        for batch in fragment.to_batches(schema=schema, use_threads=False):
            size += batch.nbytes
            if size > bytes_max:
                return pa.Table.from_batches(batches, schema=schema), taken
            found.append(batch)
        batches += found
        taken.append(file)
    return pa.Table.from_batches(batches, schema=schema), taken


def _write(lake: Lake, table: str, name: str, rows: pa.Table) -> int:
    """Write the rows into one file. Output: its size in bytes."""
    filesystem = lake.filesystem(table, pa.table({"path": [name], "size_bytes": [0]}))
    least, most = _GROUP_ROWS
    if table == SCHEDULE:
        most = DUE_GROUP_ROWS
    group_rows = max(least, min(most, _GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    narrow = [field.name for field in rows.schema if _has_order(field.type)]
    with filesystem.open_output_stream(name) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=group_rows,
            compression="zstd",
            compression_level=1,
            write_statistics=narrow,
            store_schema=False,
        )
        size = stream.tell()
    return int(size)


def _commit(lake: Lake, table: str, added: AddAction, files: Sequence[TableFile]) -> None:
    handle = lake.handle(table)
    removed = [
        RemoveAction(file.path, False, added.modification_time, file.size_bytes, {})
        for file in files
    ]
    handle.create_write_transaction(
        [added, *removed],
        "append",
        handle.schema(),
        commit_properties=CommitProperties(
            custom_metadata={"txlake.maintenance": f"merged {len(removed)} files"},
            max_commit_retries=0,
        ),
        post_commithook_properties=NO_LOG_UPKEEP,
    )


def _statistics(table: str, rows: pa.Table) -> str:
    """Give a file's statistics as Delta's log has them."""
    named = STATISTICS.get(kind_of(table))
    kept = None if named is None else named.split(",")
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        is_wanted = kept is None or field.name in kept
        if not is_wanted or not _has_order(field.type):
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
