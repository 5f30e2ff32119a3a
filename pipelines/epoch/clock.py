"""`epoch_at`: wall time at the start, plus the monotonic clock since. It never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# As far as the clocks of machine and broker can be apart; a job stops at more.
CLOCKS_APART_MS: Final = 60_000


class EpochClock:
    """The clock behind `epoch_at`. It does not follow a step of the wall clock.

    Units: ms. `wall` and `monotonic` return seconds; tests hand in their own.
    """

    def __init__(
        self,
        not_before_ms: int = 0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._last_ms = not_before_ms
        self.start()

    def start(self) -> None:
        """Reads the wall clock, as the constructor does: whoever is elected does it."""
        self._started_at = self._wall()
        self._started = self._monotonic()

    def now_ms(self) -> int:
        """Returns `epoch_at`: never before an earlier one, nor before the lake's last epoch."""
        self._last_ms = max(self._last_ms, self.raw_ms())
        return self._last_ms

    def not_before(self, instant_ms: int) -> None:
        """Sets the earliest `epoch_at` to come."""
        self._last_ms = max(self._last_ms, instant_ms)

    @property
    def last_ms(self) -> int:
        """Returns the newest instant from `now_ms` or `not_before`."""
        return self._last_ms

    def raw_ms(self) -> int:
        """Returns the clock itself, for the comparison with the broker's."""
        passed = self._monotonic() - self._started
        return int((self._started_at + passed) * 1000)
