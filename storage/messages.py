"""Read messages by their coordinates, with their bodies, a bounded part in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.places import coordinates
from storage.row_groups import Bounds, Longs, OpenedFiles, Wanted, pruned

_ROWS_AT_ONCE = 4_096  # at most: a body may have some megabytes
_BYTES_AT_ONCE = 4 * 1024 * 1024


class Tables(Protocol):
    """Where tables are: a lake, or what stands for one."""

    def dataset(self, table: str) -> ds.Dataset:
        """Return a table as an Arrow dataset."""


def touched_ranges(named: pa.Table) -> pc.Expression:
    """Return a filter that holds at least the named coordinates: each queue's range of offsets.

    Input: queue_id, queue_offset.
    """
    ranges = named.group_by("queue_id").aggregate(
        [("queue_offset", "min"), ("queue_offset", "max")]
    )
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
    named: pa.Table,
    columns: Sequence[str],
    before_epoch: int | None = None,
    due: Bounds | None = None,
    opened: OpenedFiles | None = None,
) -> Iterator[pa.RecordBatch]:
    """Stream the named rows of `half` or `schedule`; what statistics rule out is not read.

    Input: `named` has queue_id and queue_offset; `columns` include both; with `before_epoch` only
    rows of earlier epochs, and `columns` include `epoch`; `opened`: files of the same table that
    were read before; `due`: when the messages were due, as far as DELIVER_AT says so. Not all are
    (a time beyond the maximum, a resumed message): who is not found is looked for again. Units: ms.
    """
    places = np.unique(coordinates(named).to_numpy())
    found: list[Longs] = []

    def noted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found.append(coordinates(batch).to_numpy())
            yield batch

    dataset, where = lake.dataset(table), touched_ranges(named)
    opened = opened or OpenedFiles()
    for hint in (due, None) if due is not None else (None,):
        if not len(places):
            return
        near = pruned(dataset, where, Wanted(places, hint), opened)
        yield from noted(_read(near, places, columns, before_epoch))
        places = np.setdiff1d(places, np.concatenate([places[:0], *found]))


def _read(
    dataset: ds.Dataset, places: Longs, columns: Sequence[str], before_epoch: int | None
) -> Iterator[pa.RecordBatch]:
    """Stream the rows at these places.

    A filter would be compared with all statistics once more, so there is none.
    """
    batches = dataset.to_batches(
        columns=list(columns),
        batch_size=_rows_at_once(dataset),
        batch_readahead=2,
        fragment_readahead=1,
    )
    for batch in batches:
        is_wanted = _are_among(coordinates(batch).to_numpy(), places)
        if before_epoch is not None:
            is_wanted = pc.and_(is_wanted, pc.less(batch["epoch"], before_epoch))
        found = batch.filter(is_wanted)
        if found.num_rows:
            yield found


def _rows_at_once(dataset: ds.Dataset) -> int:
    """Return how many rows of a dataset have a few megabytes; Arrow reads ahead by rows."""
    if not isinstance(dataset, ds.FileSystemDataset):
        return _ROWS_AT_ONCE
    groups = [group for fragment in dataset.get_fragments() for group in fragment.row_groups]
    rows = sum(int(group.num_rows) for group in groups)
    size = sum(int(group.total_byte_size) for group in groups)
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * rows // max(size, 1)))


def _are_among(numbers: Longs, places: Longs) -> pa.BooleanArray:
    """Say which numbers are among sorted places; `pc.is_in` would hash all places each time."""
    at = np.minimum(np.searchsorted(places, numbers), len(places) - 1)
    return pa.array(places[at] == numbers)
