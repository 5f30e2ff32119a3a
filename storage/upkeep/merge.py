"""Merge some files of a table into one: the same rows, sorted, in one Delta commit.

1. Read the files, the oldest first, while their rows fit into memory.
2. Sort the rows as the table's files are (`storage/files/order.py`).
3. Write one file, in row groups small enough to skip.
4. Commit: the new file in, the old ones out, `dataChange` false.

A crash before 4 leaves a file that no commit names; VACUUM deletes it. The commit is made on the
version that was read, or not at all: after another writer's commit it fails and the table stays as
it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties
from deltalake.transaction import AddAction, RemoveAction

from storage.files.data_files import DataFile, write_file
from storage.files.order import DUE_GROUP_ROWS, in_file_order
from storage.lake.lake import NO_LOG_UPKEEP, Lake
from storage.rows import milliseconds
from storage.upkeep.merge_plan import TableFile, merged_name
from storage.wire.kinds import SCHEDULE

_GROUP_ROWS = (1_000, 65_536)
_GROUP_BYTES = 4 * 1024 * 1024  # a consumer's window is a few of these


@dataclass(frozen=True)
class Merged:
    """What a merge did."""

    files_before: int
    bytes_before: int
    bytes_after: int


def files_of(lake: Lake, table: str) -> list[TableFile]:
    """Returns the files of a table's newest version."""
    actions = lake.table(table).files()
    if actions.num_rows == 0:
        return []
    names = ["path", "size_bytes", "num_records", "min.epoch", "max.epoch", "max.stored_at"]
    columns = [
        actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows
        for name in names
    ]
    return [
        TableFile(path, size, rows or 0, first or 0, last, None if at is None else milliseconds(at))
        for path, size, rows, first, last, at in zip(*columns, strict=True)
    ]


def merge(
    lake: Lake, table: str, files: Sequence[TableFile], memory_bytes_max: int
) -> Merged | None:
    """Merges files, as many of the oldest as fit into memory. Output: None if fewer than two do.

    Errors: CommitFailedError from deltalake when another writer was faster.
    """
    rows, taken = _read(lake, table, files, memory_bytes_max)
    if len(taken) < 2:
        return None
    rows = in_file_order(table, rows)
    # Closed: two such files would not fit into memory.
    name = merged_name(taken, is_closed=2 * rows.nbytes > memory_bytes_max)
    merged = _write(lake, table, name, rows)
    _commit(lake, table, merged.added(is_data_change=False), taken)
    return Merged(len(taken), sum(file.size_bytes for file in taken), merged.size_bytes)


def _read(
    lake: Lake, table: str, files: Sequence[TableFile], bytes_max: int
) -> tuple[pa.Table, list[TableFile]]:
    schema = lake.schema(table)
    filesystem = lake.place.reading(table)
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


def _write(lake: Lake, table: str, name: str, rows: pa.Table) -> DataFile:
    """Writes the rows into one file, in row groups small enough to skip."""
    least, most = _GROUP_ROWS
    if table == SCHEDULE:
        most = DUE_GROUP_ROWS
    group_rows = max(least, min(most, _GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    return write_file(
        lake.place, table, name, rows,
        group_rows=group_rows, compression="zstd", compression_level=1,
    )  # fmt: skip


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
    lake.table(table).changed()
