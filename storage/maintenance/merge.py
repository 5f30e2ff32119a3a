"""Merge some files of a table into one: the same rows, sorted, in one Delta commit.

1. Read the files, the oldest first, while their rows fit into memory.
2. Sort the rows as the table's files are (`storage/files/order.py`).
3. Write one file, in row groups small enough to skip.
4. Commit: the new file in, the old ones out, `dataChange` false.

A crash before 4 leaves a file that no commit names; VACUUM deletes it. The commit replaces files
that are there, or nothing: where another writer has replaced or deleted one of them since it was
read, it fails and the table stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from storage.files.data_files import DataFile, write_file
from storage.files.order import DUE_GROUP_ROWS, in_file_order
from storage.lake.lake import NO_LOG_UPKEEP, Lake
from storage.maintenance.limits import StepResult
from storage.maintenance.merge_plan import TableFile, merged_name
from storage.rows import milliseconds
from storage.wire.record_kinds import SCHEDULE
from txlake._delta_handle import file_stats
from txlake._delta_handle import files_of as table_files

_GROUP_ROWS_MIN, _GROUP_ROWS_MAX = 1_000, 65_536
_GROUP_BYTES = 4 * 1024 * 1024  # a consumer's window is a few of these


def files_of(lake: Lake, table: str) -> list[TableFile]:
    """Returns the files of a table's newest version."""
    names = ["path", "size_bytes", "num_records", "min.epoch", "max.epoch", "max.stored_at"]
    stats = file_stats(lake.table(table).files(), names)
    rows = zip(*(column.to_pylist() for column in stats.columns), strict=True)

    return [
        TableFile(
            path=path,
            size_bytes=size,
            row_count=row_count or 0,
            first_epoch=first or 0,
            last_epoch=last,
            last_ms=None if stored_at is None else milliseconds(stored_at),
        )
        for path, size, row_count, first, last, stored_at in rows
    ]


def merge(
    lake: Lake,
    table: str,
    files: Sequence[TableFile],
    memory_bytes_max: int,
    before_commit: Callable[[], None] = lambda: None,
) -> StepResult | None:
    """Merges files, as many of the oldest as fit into memory. Output: None if fewer than two do.

    Input: `before_commit`: called right before the commit; an error of it stops that.
    Errors: CommitFailedError from deltalake when another writer was faster.
    """
    rows, taken = _read(lake, table, files, memory_bytes_max)
    if len(taken) < 2:
        return None

    rows = in_file_order(table, rows)
    # The file is final if two like it would not fit into memory.
    name = merged_name(taken, is_final=2 * rows.nbytes > memory_bytes_max)
    merged = _write(lake, table, name, rows)

    added = merged.add_action(is_data_change=False)
    note = f"merged {len(taken)} files"
    replace_files(lake.handle(table), taken, [added], note, before_commit=before_commit)
    lake.table(table).invalidate()

    return StepResult(1, len(taken), sum(file.size_bytes for file in taken), merged.size_bytes)


def _read(
    lake: Lake, table: str, files: Sequence[TableFile], bytes_max: int
) -> tuple[pa.Table, list[TableFile]]:
    """Reads the oldest files whose rows fit into memory together. Output: also these files."""
    schema = lake.schema(table)
    filesystem = lake.location.reading(table)
    parquet = ds.ParquetFileFormat()

    batches: list[pa.RecordBatch] = []
    taken: list[TableFile] = []
    size = 0

    for file in files:
        fragment = parquet.make_fragment(file.path, filesystem=filesystem)
        of_file = []
        for batch in fragment.to_batches(schema=schema, use_threads=False):
            size += batch.nbytes
            if size > bytes_max:
                return pa.Table.from_batches(batches, schema=schema), taken
            of_file.append(batch)

        batches += of_file
        taken.append(file)

    return pa.Table.from_batches(batches, schema=schema), taken


def _write(lake: Lake, table: str, name: str, rows: pa.Table) -> DataFile:
    """Writes the rows into one file, in row groups small enough to skip."""
    maximum = DUE_GROUP_ROWS if table == SCHEDULE else _GROUP_ROWS_MAX
    rows_by_bytes = _GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)

    return write_file(
        lake.location,
        table,
        name,
        rows,
        group_rows=max(_GROUP_ROWS_MIN, min(maximum, rows_by_bytes)),
        zstd_level=1,
    )


def replace_files(
    handle: DeltaTable,
    removed: Sequence[TableFile],
    added: Sequence[AddAction],
    note: str,
    deletion_marks: Mapping[str, int] | None = None,
    before_commit: Callable[[], None] = lambda: None,
) -> None:
    """Removes files from a table and adds others, in one Delta commit on the version of a handle.

    That version can be newer than the one in which the files were found: another driver can have
    written while this process slept. Delta itself takes a removal of a file that is not there.
    Input: `note`: why, for the commit's metadata; `deletion_marks`: numbers that the commit
    records, by transaction identifier; `before_commit`: an error of it stops that. It is called
    behind the look at the version, on which alone is committed: what another writes later makes
    the commit fail, what it wrote before is seen.
    Errors: CommitFailedError from deltalake when another writer was faster.
    """
    present = set(table_files(handle)["path"].to_pylist())
    missing = [file.path for file in removed if file.path not in present]
    if missing:
        raise CommitFailedError(
            f"another writer has replaced {missing[0]} before version {handle.version()}"
        )

    before_commit()
    now_ms = time.time_ns() // 1_000_000

    handle.create_write_transaction(
        [*added, *(RemoveAction(f.path, False, now_ms, f.size_bytes, {}) for f in removed)],
        "append",
        handle.schema(),
        commit_properties=CommitProperties(
            custom_metadata={"txlake.maintenance": note},
            max_commit_retries=0,
            app_transactions=[
                Transaction(name, value) for name, value in (deletion_marks or {}).items()
            ],
        ),
        post_commithook_properties=NO_LOG_UPKEEP,
    )
