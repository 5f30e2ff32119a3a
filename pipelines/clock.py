"""T, the instant of an epoch: wall time at the start, then the monotonic clock. Never back."""

from __future__ import annotations

import time
from collections.abc import Callable


class EpochClock:
    """Return T. A step of the wall clock while the job runs does not move it.

    Units: ms. `wall` and `monotonic` give seconds; tests hand in their own.
    """

    def __init__(
        self,
        not_before_ms: int = 0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._started_at = wall()
        self._started = monotonic()
        self._last_ms = not_before_ms

    def now_ms(self) -> int:
        """Return T: not before the last one given, nor before the lake's last epoch."""
        passed = self._monotonic() - self._started
        self._last_ms = max(self._last_ms, int((self._started_at + passed) * 1000))
        return self._last_ms

    def not_before(self, instant_ms: int) -> None:
        """Never give a T before this one."""
        self._last_ms = max(self._last_ms, instant_ms)

    def raw_ms(self) -> int:
        """Return the clock itself, for comparing it with the broker's."""
        return int((self._started_at + self._monotonic() - self._started) * 1000)
