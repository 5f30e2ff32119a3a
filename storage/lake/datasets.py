"""Files of a table as an Arrow dataset, and their statistics from the table's log."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import DeltaTable

from storage.files.location import LakeLocation
from txlake._paths import file_name

_PRUNING = ("epoch", "queue_id", "queue_offset", "transaction_id")


def files_of(handle: DeltaTable) -> pa.Table:
    """Returns the files of a table's version, as delta-rs lists them, by their own names."""
    files = pa.table(handle.get_add_actions(flatten=True))
    logged = files["path"]
    if not pc.any(pc.match_substring(logged, "%")).as_py():  # ours never are: epochs ask often
        return files

    names = pa.array(map(file_name, logged.to_pylist()), pa.string())
    return files.set_column(files.column_names.index("path"), "path", names)


def dataset_of(
    place: LakeLocation,
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
    filesystem = filesystem or place.reading(table)
    parquet = ds.ParquetFileFormat()
    paths = files["path"].to_pylist()

    fragments = [
        parquet.make_fragment(path, filesystem=filesystem, partition_expression=within)
        for path, within in zip(paths, bounds or [None] * len(paths), strict=True)
    ]

    return ds.FileSystemDataset(fragments, schema, parquet, filesystem)


def file_stats(files: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns columns of a table's files, as its log has them; null where it has none."""
    nulls = pa.nulls(files.num_rows)
    logged = files.column_names

    return pa.table({name: files[name] if name in logged else nulls for name in names})


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
