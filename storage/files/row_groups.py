"""Open only the row groups that can hold a wanted message, by the statistics in the files.

Arrow prunes by a filter, too, but compares each of its terms with each group: with a range for each
of twenty queues that takes longer than to read the messages. And a range holds more than was named.
Here each group's first and last place is searched among the wanted ones.
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
_KEPT_MAX = 64  # footers of some hundred kB; about so many files of a table are live


@dataclass(frozen=True)
class KeyFilter:
    """The messages to find.

    `places`: sorted. `due`: groups whose messages all have a DELIVER_AT, each outside these
    instants, are left out. Units: ms.
    """

    places: Int64Array
    due: Bounds | None = None


@dataclass(frozen=True)
class _File:
    """A file whose footer was read: where and when the messages of each row group are."""

    fragment: ds.ParquetFileFragment
    places: Int64Array  # two columns: the first and the last a row can have
    due: Int64Array  # likewise, us

    @classmethod
    def of(cls, fragment: ds.ParquetFileFragment) -> _File:
        metadata = fragment.metadata
        columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        statistics = [
            [group.column(columns[name]).statistics if name in columns else None for name in _READ]
            for group in groups
        ]
        places = [_places(queues, offsets) for queues, offsets, _ in statistics]
        due = [_due(deliver_at) for _, _, deliver_at in statistics]
        return cls(fragment, *(np.array(ends, np.int64).reshape(-1, 2) for ends in (places, due)))

    def groups(self, wanted: KeyFilter) -> list[int]:
        """Returns the numbers of the row groups that can hold a wanted message."""
        lows, highs = self.places.T
        first = np.searchsorted(wanted.places, lows)
        may_hold = first < np.searchsorted(wanted.places, highs, side="right")
        if wanted.due is not None:
            since, until = (1_000 * at for at in wanted.due)
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
            found = self._files.pop(fragment.path, None)
        found = found or _File.of(fragment)
        with self._lock:
            self._files[fragment.path] = found
            while len(self._files) > _KEPT_MAX:
                del self._files[next(iter(self._files))]
        return found


def pruned(
    dataset: ds.Dataset, where: pc.Expression, wanted: KeyFilter, footers: FooterCache
) -> ds.Dataset:
    """Returns the part of a dataset that can hold a wanted message, and all its rows in memory.

    Input: `where`: rules out whole files by the statistics of the log.
    """
    if isinstance(dataset, ds.UnionDataset):
        children = [pruned(child, where, wanted, footers) for child in dataset.children]
        return ds.UnionDataset(dataset.schema, children)
    if not isinstance(dataset, ds.FileSystemDataset):
        return dataset
    files = [footers.file(fragment) for fragment in dataset.get_fragments(where)]
    parts = [
        file.fragment.subset(row_group_ids=groups)
        for file in files
        if (groups := file.groups(wanted))
    ]
    return ds.FileSystemDataset(parts, dataset.schema, dataset.format, dataset.filesystem)


def _places(queue_statistics: Any, offset_statistics: Any) -> Bounds:
    """Returns the first and the last place that a row of a group can have."""
    queues, offsets = _bounds(queue_statistics), _bounds(offset_statistics)
    if queues is None or offsets is None:
        return _ALL
    low, high = map(pack_key, queues, offsets)
    return low, high


def _due(statistics: Any) -> Bounds:
    """Returns the first and the last DELIVER_AT of a group; a row without one is due any time."""
    bounds = _bounds(statistics)
    if bounds is None or not statistics.has_null_count or statistics.null_count:
        return _ALL
    return bounds


def _bounds(statistics: Any) -> Bounds | None:
    """Returns the least and the largest value; None if the file has no statistics."""
    if statistics is None or not statistics.has_min_max:
        return None
    low, high = statistics.min_raw, statistics.max_raw
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None
