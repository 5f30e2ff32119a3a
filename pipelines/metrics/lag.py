"""How far landing is behind Kafka, in records and in time.

The end offsets at an instant are all landed sooner or later. The newest such instant is the last
time without a lag; since then there is a lag, as long as records wait. Units: ms.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from storage.lake.epochs import Partition, Plan

_INTERVAL_MS: Final = 1_000  # between two remembered samples
_REMEMBERED_MAX: Final = 600


class Lag:
    """The lag of one driver; not known before `reset`. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._landed: dict[Partition, int] | None = None
        self._ends: dict[Partition, int] = {}
        self._samples: list[tuple[int, Mapping[Partition, int]]] = []
        self._caught_up_at: int | None = None
        self._began_at = 0

    def reset(self, last: Plan | None, now_ms: int) -> None:
        """Begins behind the last committed epoch; without one, a lag begins now."""
        with self._lock:
            self._landed = {} if last is None else last.landed()
            self._samples = []
            self._began_at = now_ms
            self._caught_up_at = None if last is None else last.epoch_at

    def observe_ends(self, at_ms: int, ends: Mapping[Partition, int]) -> None:
        """Adds the end offsets of an instant."""
        with self._lock:
            self._ends = {**self._ends, **ends}
            if self._samples and at_ms - self._samples[-1][0] < _INTERVAL_MS:
                return

            self._samples.append((at_ms, dict(ends)))
            if len(self._samples) > _REMEMBERED_MAX:  # the longer ago, the coarser
                del self._samples[1::2]

    def observe_landed(self, plan: Plan, oldest_stored_at: int | None = None) -> None:
        """Adds a plan that is committed, or that had nothing to land.

        Input: when the oldest record that it landed was stored: at a start on a backlog nothing
        else shows how far behind it is.
        """
        with self._lock:
            self.observe_ends(plan.epoch_at, {r.topic_partition: r.end_offset for r in plan.ranges})
            self._landed = {**(self._landed or {}), **plan.landed()}

            known = [self._caught_up_at, oldest_stored_at]
            while self._samples and not self._behind(self._samples[0][1]):
                known.append(self._samples.pop(0)[0])
            if not self._samples:  # nothing is behind the newest ends
                known.append(plan.epoch_at)

            self._caught_up_at = max((at for at in known if at is not None), default=None)

    def records(self) -> int | None:
        """Returns how many records of Kafka are not landed."""
        with self._lock:
            return None if self._landed is None else self._behind(self._ends)

    def behind_ms(self, now_ms: int) -> int | None:
        """Returns for how long records have been waiting: 0 if none waits; None if not known."""
        with self._lock:
            records = self.records()
            if not records:
                return records

            return max(0, now_ms - (self._caught_up_at or self._began_at))

    def _behind(self, ends: Mapping[Partition, int]) -> int:
        landed = self._landed or {}
        return sum(max(0, end - landed.get(partition, 0)) for partition, end in ends.items())
