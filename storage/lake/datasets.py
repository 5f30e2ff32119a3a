"""Files of a table as an Arrow dataset, and their statistics from the table's log."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs

from storage.files.location import LakeLocation
from txlake._delta_handle import file_stats

_PRUNING = ("epoch", "queue_id", "queue_offset", "transaction_id")


def dataset_of(
    location: LakeLocation,
    table: str,
    files: pa.Table,
    schema: pa.Schema,
    bounds: Sequence[pc.Expression | None] | None = None,
    filesystem: pa_fs.FileSystem | None = None,
) -> ds.Dataset:
    """Returns files of a table as a dataset.

    Input: the files as `files_of` returns them; `bounds`: what holds for all rows of each;
    `filesystem`: another way to the table's files.
    """
    filesystem = filesystem or location.reading(table)
    parquet = ds.ParquetFileFormat()
    paths = files["path"].to_pylist()

    fragments = [
        parquet.make_fragment(path, filesystem=filesystem, partition_expression=within)
        for path, within in zip(paths, bounds or [None] * len(paths), strict=True)
    ]

    return ds.FileSystemDataset(fragments, schema, parquet, filesystem)


def bounds_of(files: pa.Table) -> list[pc.Expression | None]:
    """Returns for each file what holds for all its rows; a column with nulls says nothing."""
    bounds: list[pc.Expression | None] = [None] * files.num_rows

    for name in _PRUNING:
        field = pc.field(name)
        stats = file_stats(files, [f"min.{name}", f"max.{name}", f"null_count.{name}"])
        rows = zip(*(column.to_pylist() for column in stats.columns), strict=True)

        for number, (minimum, maximum, nulls) in enumerate(rows):
            if nulls == 0 and minimum is not None and maximum is not None:
                within = (field >= minimum) & (field <= maximum)
                before = bounds[number]
                bounds[number] = within if before is None else before & within

    return bounds
