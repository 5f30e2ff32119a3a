"""Windows of offsets of many queues, read from a topic's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

_TERMS_MAX: Final = 64


class OffsetWindows:
    """For each queue the offsets that are wanted: from the first to before the second.

    A filter with a term for each queue takes time by the square of the queues, and some thousands
    overflow Arrow's stack, which ends the process. So many queues share terms, and what these let
    through is chosen here.
    """

    def __init__(self, windows: Mapping[int, tuple[int, int]]) -> None:
        queue_ids = sorted(windows)
        self._queue_ids = np.array(queue_ids, np.int64)
        self._begins = np.array([windows[queue_id][0] for queue_id in queue_ids], np.int64)
        self._ends = np.array([windows[queue_id][1] for queue_id in queue_ids], np.int64)

    def bounds(self) -> pc.Expression:
        """Returns a filter that all wanted rows pass; of more than 64 queues others can pass.

        Without a queue nothing passes.
        """
        if not len(self._queue_ids):
            return pc.scalar(False)

        by_begin = np.argsort(self._begins, kind="stable")
        terms = [
            self._bounds_of(part)
            for part in np.array_split(by_begin, min(_TERMS_MAX, len(by_begin)))
        ]
        return reduce(or_, terms)

    def _bounds_of(self, part: Any) -> pc.Expression:
        """Returns a filter of some queues, by their indexes."""
        queue, offset = pc.field("queue_id"), pc.field("queue_offset")
        is_queue = queue.isin(pa.array(self._queue_ids[part]).cast(pa.int32()))
        first, end = int(self._begins[part].min()), int(self._ends[part].max())
        return is_queue & (offset >= first) & (offset < end)

    def select(self, rows: Any) -> Any:
        """Returns the wanted rows of a table or a batch. Input: queue_id, queue_offset."""
        queue_ids = np.asarray(rows["queue_id"])
        offsets = np.asarray(rows["queue_offset"])

        index = np.searchsorted(self._queue_ids, queue_ids)
        index = np.minimum(index, len(self._queue_ids) - 1)
        is_wanted = (
            (self._queue_ids[index] == queue_ids)
            & (offsets >= self._begins[index])
            & (offsets < self._ends[index])
        )
        return rows if is_wanted.all() else rows.filter(pa.array(is_wanted))

    def read(self, dataset: ds.Dataset, columns: Sequence[str]) -> pa.Table:
        """Returns the wanted rows of a dataset. Input: `columns`: queue_id and queue_offset, too.

        Errors: those of Arrow.
        """
        scanner = dataset.scanner(columns=list(columns), filter=self.bounds())
        batches = [self.select(batch) for batch in scanner.to_batches()]
        return pa.Table.from_batches(batches, scanner.projected_schema)
