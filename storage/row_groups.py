"""Open only the row groups that may hold what is looked for, by the statistics in the files.

Arrow prunes by a filter too, but compares each of its terms with each group: with a range for each
of twenty queues that takes longer than to read what is wanted. And a range holds more than was
named. Here each group is asked whether any named message can stand in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.dataset as ds

Longs: TypeAlias = npt.NDArray[np.int64]
Bounds: TypeAlias = tuple[int, int]  # both included

OFFSET_BITS: Final = 44  # of a coordinate as one number: the queue stands above them
_ALL: Final = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class Wanted:
    """Be what is looked for.

    `places`: coordinates, sorted; `due`: groups in which all have a DELIVER_AT and none is within
    these instants are left out, too. Units: ms.
    """

    places: Longs
    due: Bounds | None = None

    def groups(self, file: ds.ParquetFileFragment) -> list[int]:
        """Name the row groups of a file that may hold any of it."""
        metadata = file.metadata
        columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        ends = [_places(group, columns) for group in groups]
        lows, highs = np.array(ends, np.int64).reshape(-1, 2).T
        may_hold = np.searchsorted(self.places, lows) < np.searchsorted(
            self.places, highs, side="right"
        )
        return [
            int(number)
            for number in np.flatnonzero(may_hold)
            if self.due is None or _may_be_due(groups[number], columns, self.due)
        ]


def pruned(dataset: ds.Dataset, where: pc.Expression, wanted: Wanted) -> ds.Dataset:
    """Give the part of a dataset that may hold what is wanted; rows in memory stay as they are.

    Input: `where`: rules out whole files by what is known of them without opening any.
    """
    if isinstance(dataset, ds.UnionDataset):
        children = [pruned(child, where, wanted) for child in dataset.children]
        return ds.UnionDataset(dataset.schema, children)
    if not isinstance(dataset, ds.FileSystemDataset):
        return dataset
    files = [
        file.subset(row_group_ids=groups)
        for file in dataset.get_fragments(where)
        if (groups := wanted.groups(file))
    ]
    return ds.FileSystemDataset(files, dataset.schema, dataset.format, dataset.filesystem)


def _places(group: Any, columns: dict[str, int]) -> Bounds:
    """Give the first and the last place that a row of the group can have."""
    queues = _bounds(group.column(columns["queue_id"]).statistics)
    offsets = _bounds(group.column(columns["queue_offset"]).statistics)
    if queues is None or offsets is None:
        return _ALL
    low, high = zip(queues, offsets, strict=True)
    return (low[0] << OFFSET_BITS) + low[1], (high[0] << OFFSET_BITS) + high[1]


def _may_be_due(group: Any, columns: dict[str, int], due: Bounds) -> bool:
    statistics = group.column(columns["deliver_at"]).statistics
    bounds = _bounds(statistics)
    if bounds is None or not statistics.has_null_count or statistics.null_count:
        return True
    return bounds[0] <= due[1] * 1_000 and bounds[1] >= due[0] * 1_000  # us at rest


def _bounds(statistics: Any) -> Bounds | None:
    """Give the least and the largest value; None where the file does not say."""
    if statistics is None or not statistics.has_min_max:
        return None
    low, high = statistics.min_raw, statistics.max_raw
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None
