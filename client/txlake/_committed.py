"""What the committed rows of `epochs` say of each table, and whether a table still holds it.

A committed row names the tables that its epoch wrote, each with the version that it had reached and
the rows that it held; from time to time one names all. The SDK and the job both check so before
they read (`_integrity.py`, `storage/lake/integrity.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs

from txlake._delta_handle import file_stats

DIGEST_FORMAT: Final = 2  # the first lake format in which a committed row names tables
NAMED_EPOCHS_MAX: Final = 500  # the most epochs that settings allow between two rows that name all

# A table that looks wrong while others write the lake is looked at so often before it is refused.
CHECK_TRIES: Final = 4
CHECK_PAUSE_S: Final = 0.05  # ten times what a step of maintenance takes to commit

COLUMNS: Final = ("epoch", "state", "counts", "tables")  # of `epochs`: all that is read for it
_NAMES_ALL: Final = "snapshot"  # among the counts of such a row


def since_full_row(commits: pa.Table) -> pa.Table | None:
    """Returns the committed rows from the newest that names all tables on; None if none does."""
    full = commits.filter(pc.is_valid(pc.map_lookup(commits["counts"], _NAMES_ALL, "first")))
    if not full.num_rows:
        return None
    return commits.filter(pc.greater_equal(commits["epoch"], pc.max(full["epoch"])))


def named_tables(commits: pa.Table) -> dict[str, tuple[int, int]]:
    """Returns version and rows of each table, as the last row that names it has them.

    Input: committed rows in the order of their epochs.
    """
    entries = pc.list_flatten(commits["tables"])
    names = pc.struct_field(entries, "table").to_pylist()
    versions = pc.struct_field(entries, "version").to_pylist()
    row_counts = pc.struct_field(entries, "rows").to_pylist()

    return dict(zip(names, zip(versions, row_counts, strict=True), strict=True))


def lost_file(files: pa.Table, filesystem: pa_fs.FileSystem) -> str | None:
    """Returns a file of a table that is missing in its folder, or has another size; None if none.

    Input: the files as `files_of` returns them; the table's folder. Errors: OSError.
    """
    logged = files.select(["path", "size_bytes"]).to_pylist() if files.num_rows else []
    infos = filesystem.get_file_info([file["path"] for file in logged])

    for info, file in zip(infos, logged, strict=True):
        if info.type != pa_fs.FileType.File or info.size not in (None, file["size_bytes"]):
            return str(info.path)
    return None


def count_committed(
    files: pa.Table, committed: int, read_epochs: Callable[[pa.Table], pa.ChunkedArray]
) -> tuple[int, int]:
    """Returns how many rows of committed epochs a table holds, and the newest epoch of any row.

    The log tells. The column `epoch` is read only of files without statistics, and of files in
    which another writer put committed and later rows together.
    Input: the files as `files_of` returns them; the newest committed epoch; `read_epochs`: returns
    the column of some of the files.
    """
    rows, first, last = file_stats(files, ["num_records", "min.epoch", "max.epoch"]).columns

    is_known = pc.and_(pc.is_valid(rows), pc.and_(pc.is_valid(first), pc.is_valid(last)))
    is_before = pc.less_equal(last, committed)
    is_sure = pc.and_kleene(is_known, pc.or_kleene(is_before, pc.greater(first, committed)))

    row_count = pc.sum(rows.filter(pc.and_kleene(is_sure, is_before))).as_py() or 0
    newest = pc.max(last).as_py() or 0

    unsure = files.filter(pc.invert(is_sure))
    if unsure.num_rows:
        epochs = read_epochs(unsure)
        row_count += pc.sum(pc.less_equal(epochs, committed)).as_py() or 0
        newest = max(newest, pc.max(epochs).as_py() or 0)

    return row_count, newest
