"""Open only the row groups that can hold a message of a filter, by the statistics in the files.

Arrow prunes by a filter, too, but compares each of its terms with each group: with a range for each
of twenty queues that takes longer than to read the messages. And a range holds more row keys than
were named. Here each group's first and last row key is searched among the named ones.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.schemas import pack_key

Int64Array: TypeAlias = npt.NDArray[np.int64]
Bounds: TypeAlias = tuple[int, int]  # both included

_READ: Final = ("queue_id", "queue_offset", "deliver_at")
_ALL: Final = (-(2**63), 2**63 - 1)
_FOOTERS_MAX = 64  # of some hundred kB each; a table has about 64 live files


@dataclass(frozen=True)
class KeyFilter:
    """The messages to find.

    `keys`: their row keys, sorted. `due`: groups whose messages all have a DELIVER_AT, each outside
    these instants, are left out. Units: ms.
    """

    keys: Int64Array
    due: Bounds | None = None


@dataclass(frozen=True)
class _File:
    """A file whose footer was read: the row keys and the times of each row group."""

    fragment: ds.ParquetFileFragment
    keys: Int64Array  # two columns: the first and the last that a row can have
    due: Int64Array  # likewise, us

    @classmethod
    def of(cls, fragment: ds.ParquetFileFragment) -> _File:
        metadata = fragment.metadata
        columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}

        keys = []
        due = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            queues, offsets, deliver_at = (
                group.column(columns[name]).statistics if name in columns else None
                for name in _READ
            )
            keys.append(_key_bounds(queues, offsets))
            due.append(_due_bounds(deliver_at))

        return cls(fragment, _as_pairs(keys), _as_pairs(due))

    def groups(self, key_filter: KeyFilter) -> list[int]:
        """Returns the numbers of the row groups that can hold a message of a filter."""
        lows, highs = self.keys.T
        first = np.searchsorted(key_filter.keys, lows)
        may_hold = first < np.searchsorted(key_filter.keys, highs, side="right")

        if key_filter.due is not None:
            since, until = (1_000 * at for at in key_filter.due)
            may_hold &= (self.due[:, 0] <= until) & (self.due[:, 1] >= since)

        return [int(number) for number in np.flatnonzero(may_hold)]


class FooterCache:
    """Keeps the footers of the files that were read last: reading one takes as long as a group."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()

    def file(self, fragment: ds.ParquetFileFragment) -> _File:
        """Returns a file by its path: a path names one file for ever."""
        with self._lock:
            file = self._files.pop(fragment.path, None)

        file = file or _File.of(fragment)

        with self._lock:
            self._files[fragment.path] = file  # now the newest
            while len(self._files) > _FOOTERS_MAX:
                del self._files[next(iter(self._files))]

        return file


def pruned(
    dataset: ds.Dataset, where: pc.Expression, key_filter: KeyFilter, footers: FooterCache
) -> ds.Dataset:
    """Returns the part of a dataset that can hold a message of a filter, and all rows in memory.

    Input: `where`: rules out whole files by the statistics of the log.
    """
    if isinstance(dataset, ds.UnionDataset):
        children = [pruned(child, where, key_filter, footers) for child in dataset.children]
        return ds.UnionDataset(dataset.schema, children)

    if not isinstance(dataset, ds.FileSystemDataset):
        return dataset

    parts = []
    for fragment in dataset.get_fragments(where):
        file = footers.file(fragment)
        groups = file.groups(key_filter)
        if groups:
            parts.append(file.fragment.subset(row_group_ids=groups))

    return ds.FileSystemDataset(parts, dataset.schema, dataset.format, dataset.filesystem)


def _as_pairs(bounds: list[Bounds]) -> Int64Array:
    """Returns bounds as an array of two columns, also if there are none."""
    return np.array(bounds, np.int64).reshape(-1, 2)


def _key_bounds(queue_statistics: Any, offset_statistics: Any) -> Bounds:
    """Returns the first and the last row key that a row of a group can have."""
    queues = _bounds(queue_statistics)
    offsets = _bounds(offset_statistics)
    if queues is None or offsets is None:
        return _ALL

    low, high = map(pack_key, queues, offsets)
    return low, high


def _due_bounds(statistics: Any) -> Bounds:
    """Returns the first and the last DELIVER_AT of a group; a row without one is due any time."""
    bounds = _bounds(statistics)
    if bounds is None or not statistics.has_null_count or statistics.null_count:
        return _ALL
    return bounds


def _bounds(statistics: Any) -> Bounds | None:
    """Returns the smallest and the largest value; None if the file has no statistics."""
    if statistics is None or not statistics.has_min_max:
        return None

    low, high = statistics.min_raw, statistics.max_raw
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None
