"""Read messages by their places, with their bodies, a bounded part in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.files.row_groups import Bounds, FooterCache, Int64Array, KeyFilter, pruned
from storage.schemas import row_keys

_ROWS_AT_ONCE = 4_096  # at most: a body can have some megabytes
_BYTES_AT_ONCE = 4 * 1024 * 1024


class Tables(Protocol):
    """Where tables are: a lake, or what stands for one."""

    def dataset(self, table: str) -> ds.Dataset:
        """Returns a table as an Arrow dataset."""


def offset_filter(keys: pa.Table) -> pc.Expression:
    """Returns a filter that holds at least the named places: each queue's range of offsets.

    Input: queue_id, queue_offset.
    """
    ranges = keys.group_by("queue_id").aggregate([("queue_offset", "min"), ("queue_offset", "max")])
    where = pc.scalar(False)
    for r in ranges.to_pylist():
        where = where | (
            (pc.field("queue_id") == r["queue_id"])
            & (pc.field("queue_offset") >= r["queue_offset_min"])
            & (pc.field("queue_offset") <= r["queue_offset_max"])
        )
    return where


def read_messages(
    lake: Tables,
    table: str,
    keys: pa.Table,
    columns: Sequence[str],
    before_epoch: int | None = None,
    due: Bounds | None = None,
    footers: FooterCache | None = None,
) -> Iterator[pa.RecordBatch]:
    """Streams the named rows of `half` or `schedule`; what statistics rule out is not read.

    Input: `keys` has queue_id and queue_offset; `columns` include both; with `before_epoch` only
    rows of earlier epochs, and `columns` include `epoch`; `footers`: files of the same table that
    were read before; `due`: when the messages were due, as far as DELIVER_AT says so. Others
    (a time beyond the maximum, a resumed message) are found by a second look. Units: ms.
    """
    wanted = _sorted_once(row_keys(keys))
    dataset, where = lake.dataset(table), offset_filter(keys)
    footers = footers or FooterCache()
    if due is not None:
        found = [wanted[:0]]
        near = pruned(dataset, where, KeyFilter(wanted, due), footers)
        for batch in _read(near, wanted, columns, before_epoch):
            found.append(row_keys(batch))
            yield batch
        wanted = np.setdiff1d(wanted, np.concatenate(found))
    if len(wanted):
        near = pruned(dataset, where, KeyFilter(wanted), footers)
        yield from _read(near, wanted, columns, before_epoch)


def _read(
    dataset: ds.Dataset, wanted: Int64Array, columns: Sequence[str], before_epoch: int | None
) -> Iterator[pa.RecordBatch]:
    """Streams the rows at these places.

    Without a filter: Arrow would compare it with all statistics once more.
    """
    batches = dataset.to_batches(
        columns=list(columns),
        batch_size=_rows_at_once(dataset),
        batch_readahead=2,
        fragment_readahead=1,
    )
    for batch in batches:
        is_wanted = _in_sorted(row_keys(batch), wanted)
        if before_epoch is not None:
            is_wanted = pc.and_(is_wanted, pc.less(batch["epoch"], before_epoch))
        found = batch.filter(is_wanted)
        if found.num_rows:
            yield found


def _sorted_once(numbers: Int64Array) -> Int64Array:
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


def _in_sorted(found: Int64Array, wanted: Int64Array) -> pa.BooleanArray:
    """Returns which places are among sorted ones; `pc.is_in` would hash all of these each time."""
    at = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
    return pa.array(wanted[at] == found)
