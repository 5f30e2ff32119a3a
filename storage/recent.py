"""The messages that were landed last, kept in memory: most are delivered within an epoch or two.

Reading them again from files means whole row groups, of which many are wanted in part. What is
kept here stands in the table already, so whoever does not find a message here reads it there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.row_groups import OFFSET_BITS, Longs

_BYTES_MAX = 64 * 1024 * 1024


class _Landed(NamedTuple):
    rows: pa.Table
    places: Longs  # of the rows, ascending


class RecentMessages:
    """Keep rows of one table, the newest first to stay; safe between threads.

    Units: bytes, as Arrow counts them.
    """

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[_Landed] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, rows: pa.Table) -> None:
        """Keep what was appended, if it is in the order of its places, as an epoch's rows are."""
        places = coordinates(rows).to_numpy()
        if rows.nbytes > self._bytes_max or (np.diff(places) <= 0).any():
            self.clear()
            return
        with self._lock:
            self._kept.append(_Landed(rows, places))
            self._bytes += rows.nbytes
            while self._bytes > self._bytes_max:
                self._bytes -= self._kept.popleft().rows.nbytes

    def clear(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def read(
        self, places: Longs, columns: Sequence[str], before_epoch: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Give the rows at these places that are kept, with `before_epoch` of earlier epochs."""
        with self._lock:
            kept = list(self._kept)
        for rows, here in kept:
            at = np.searchsorted(here, places)
            at = at[np.take(here, at, mode="clip") == places]
            if not len(at):
                continue
            found = rows.select(list(columns)).take(pa.array(at))
            if before_epoch is not None:
                found = found.filter(pc.less(found["epoch"], before_epoch))
            yield from found.to_batches()


def coordinates(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Give one number a coordinate: Kafka's offsets stay far below 2^44, partitions below 2^19."""
    bits = pa.scalar(OFFSET_BITS, pa.int64())
    queue = pc.shift_left(rows.column("queue_id").cast(pa.int64()), bits)
    return pc.add(queue, rows.column("queue_offset"))
