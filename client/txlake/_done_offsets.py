"""How far each partition is done, when its records are done in any order."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class DoneOffsets:
    """For each partition the offset below which every record is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, set[int]] = {}
        self._next: dict[int, int] = {}
        self._taken: dict[int, int] = {}

    def open(self, partition: int, offset: int) -> None:
        """Notes that a record was taken; offsets of a partition come in order."""
        with self._lock:
            self._open.setdefault(partition, set()).add(offset)
            self._taken.setdefault(partition, offset)
            self._next[partition] = offset + 1

    def close(self, partition: int, offset: int) -> None:
        """Notes that a record is done; for a forgotten partition nothing changes."""
        with self._lock:
            self._open.get(partition, set()).discard(offset)

    def has_open(self) -> bool:
        """Returns whether some record is not done."""
        with self._lock:
            return any(self._open.values())

    def take_advanced(self) -> dict[int, int]:
        """Returns the next offset of each partition that has moved since the last call."""
        with self._lock:
            marks = {
                partition: min(offsets, default=self._next[partition])
                for partition, offsets in self._open.items()
            }
            advanced = {
                partition: offset
                for partition, offset in marks.items()
                if offset > self._taken[partition]
            }
            self._taken.update(advanced)
            return advanced

    def forget(self, partitions: Iterable[int]) -> None:
        """Drops partitions that belong to another consumer now."""
        with self._lock:
            for partition in partitions:
                self._open.pop(partition, None)
                self._next.pop(partition, None)
                self._taken.pop(partition, None)
