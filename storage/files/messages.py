"""Read messages by their row keys, with their bodies, a bounded part in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.files.row_groups import Bounds, FooterCache, Int64Array, KeyFilter, pruned
from storage.schemas import TABLES, row_keys
from txlake._offset_windows import OffsetWindows

_ROWS_AT_ONCE = 4_096  # at most: a body can have some megabytes
_BYTES_AT_ONCE = 4 * 1024 * 1024


class Tables(Protocol):
    """The owner of tables: a lake, or an object like it."""

    def dataset(self, table: str) -> ds.Dataset:
        """Returns a table as an Arrow dataset."""


def offset_filter(keys: pa.Table) -> pc.Expression:
    """Returns a filter that includes the named row keys: about each queue's range of offsets.

    Input: queue_id, queue_offset. The caller chooses among the rows that pass.
    """
    ranges = keys.group_by("queue_id").aggregate([("queue_offset", "min"), ("queue_offset", "max")])
    windows = {
        row["queue_id"]: (row["queue_offset_min"], row["queue_offset_max"] + 1)
        for row in ranges.to_pylist()
    }
    return OffsetWindows(windows).bounds()


def read_messages(
    lake: Tables,
    table: str,
    keys: pa.Table,
    columns: Sequence[str],
    before_epoch: int | None = None,
    due: Bounds | None = None,
    footers: FooterCache | None = None,
) -> Iterator[pa.RecordBatch]:
    """Streams the named rows of `half` or `schedule`; parts ruled out by statistics are not read.

    Input: `keys` has queue_id and queue_offset; `columns` include both; with `before_epoch` only
    rows of earlier epochs, and `columns` include `epoch`; `footers`: files of the same table that
    were read before; `due`: when the messages were due, as far as DELIVER_AT says so. Others
    (a time beyond the maximum, a resumed message) are read in a second pass. Units: ms.
    """
    remaining = _sorted_unique(row_keys(keys))
    dataset = lake.dataset(table)
    where = offset_filter(keys)
    footers = footers or FooterCache()

    if due is not None:
        read_keys = [remaining[:0]]
        candidates = pruned(dataset, where, KeyFilter(remaining, due), footers)
        for batch in _read(candidates, remaining, columns, before_epoch):
            read_keys.append(row_keys(batch))
            yield batch
        remaining = np.setdiff1d(remaining, np.concatenate(read_keys))

    if len(remaining):
        candidates = pruned(dataset, where, KeyFilter(remaining), footers)
        yield from _read(candidates, remaining, columns, before_epoch)


def read_named(
    lake: Tables,
    table: str,
    keys: pa.Table,
    columns: Sequence[str],
    before_epoch: int,
    footers: FooterCache | None = None,
) -> pa.Table:
    """Returns the named rows of earlier epochs, without bodies: as `read_messages`, in one frame.

    However far the keys stand apart, only rows with one of them are in memory.
    """
    names = list(dict.fromkeys([*columns, "epoch"]))
    batches = list(read_messages(lake, table, keys, names, before_epoch, footers=footers))
    if not batches:
        return TABLES[table].empty_table().select(list(columns))

    rows = pa.Table.from_batches(batches)
    rows.validate(full=True)  # else text that is not UTF-8 would be found much later
    return rows.select(list(columns))


def _read(
    dataset: ds.Dataset, keys: Int64Array, columns: Sequence[str], before_epoch: int | None
) -> Iterator[pa.RecordBatch]:
    """Streams the rows of these keys.

    Arrow gets no filter: it would compare it with all statistics once more.
    """
    batches = dataset.to_batches(
        columns=list(columns),
        batch_size=_rows_at_once(dataset),
        batch_readahead=2,
        fragment_readahead=1,
    )

    for batch in batches:
        is_named = _in_sorted(row_keys(batch), keys)
        if before_epoch is not None:
            is_named = pc.and_(is_named, pc.less(batch["epoch"], before_epoch))

        rows = batch.filter(is_named)
        if rows.num_rows:
            yield rows


def _sorted_unique(numbers: Int64Array) -> Int64Array:
    """Returns the different numbers in order; those of a delivery are so already."""
    return numbers if (np.diff(numbers) > 0).all() else np.unique(numbers)


def _rows_at_once(dataset: ds.Dataset) -> int:
    """Returns how many rows of a dataset have a few megabytes; Arrow reads ahead by rows."""
    if not isinstance(dataset, ds.FileSystemDataset):
        return _ROWS_AT_ONCE
    groups = [group for fragment in dataset.get_fragments() for group in fragment.row_groups]
    rows = sum(int(group.num_rows) for group in groups)
    size = sum(int(group.total_byte_size) for group in groups)
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * rows // max(size, 1)))


def _in_sorted(keys: Int64Array, sorted_keys: Int64Array) -> pa.BooleanArray:
    """Returns which keys are among sorted ones; `pc.is_in` would hash all of these each time."""
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return pa.array(sorted_keys[at] == keys)
