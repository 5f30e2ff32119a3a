"""When Spark cuts the next micro-batch, so that Kafka's end offsets can be read just before.

Source: Spark's ProcessingTimeExecutor: a batch begins at the multiple of the interval that follows
the beginning of the one before, or at once where that has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Asking takes some ms, and Spark needs 50 between two batches. Ending later delays the next batch.
_AHEAD_S = 0.1


class Trigger:
    """A query's trigger, followed batch by batch. Units: s; `wall` is Spark's clock, too."""

    def __init__(self, interval_s: float, wall: Callable[[], float] = time.time) -> None:
        self._interval_s = interval_s
        self._wall = wall
        self._next_at = 0.0
        self._ended_at = wall()

    def batch_started(self) -> None:
        """Records that a batch began: at its time, or when the one before had ended."""
        began_at = max(self._next_at, self._ended_at)
        self._next_at = (began_at // self._interval_s + 1) * self._interval_s

    def batch_finished(self) -> None:
        """Records that a batch has ended."""
        self._ended_at = self._wall()

    def wait_s(self) -> float:
        """Returns the time until shortly before the next batch is cut; 0 if that has passed."""
        wait_s = self._next_at - _AHEAD_S - self._wall()
        return min(max(wait_s, 0.0), self._interval_s)
