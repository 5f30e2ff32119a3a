"""When a waiting consumer reads the lake again: on a disk often, on a store less and less."""

from __future__ import annotations

import time

# On a disk a look is one look for a name. A message is seen so long after its commit at most, and
# read then.
LOOK_S = 0.03
_FIRST_PAUSE_S = 0.05  # on a store; an epoch takes about a second
_GROWTH = 1.5
_TOPICS_S = 2.0


class PollBackoff:
    """The times at which a consumer reads.

    Input: `is_store`: each read is a request, so that pauses grow while nothing comes;
    `pause_s_max`: the longest pause.
    """

    def __init__(self, *, is_store: bool, pause_s_max: float) -> None:
        self.is_store = is_store
        self._first_s = _FIRST_PAUSE_S if is_store else LOOK_S
        self._pause_s_max = max(pause_s_max, self._first_s) if is_store else LOOK_S
        self._pause_s = self._first_s

        self._next_at = 0.0
        self._next_topics_at = 0.0

    def is_due(self, *, has_rows: bool) -> bool:
        """Returns whether to read. On a disk, where a read is free, whenever no rows are left."""
        return time.monotonic() >= self._next_at or not (has_rows or self.is_store)

    def is_for_topics(self, *, knows_all: bool) -> bool:
        """Returns whether this read is also for new topics and queues."""
        now = time.monotonic()
        if self.is_store and knows_all and now < self._next_topics_at:
            return False

        self._next_topics_at = now + _TOPICS_S
        return True

    def note_read(self, *, is_new: bool) -> None:
        """Notes a read, and whether it has brought something new."""
        self._pause_s = self._first_s if is_new else min(self._pause_s * _GROWTH, self._pause_s_max)
        self._next_at = time.monotonic() + self._pause_s

    def remaining_s(self) -> float:
        """Returns how long it is until the next read."""
        return max(self._next_at - time.monotonic(), 0.0) if self.is_store else LOOK_S

    def wait(self, deadline: float) -> None:
        """Waits for the next read, at most until a deadline (monotonic s)."""
        time.sleep(max(min(self.remaining_s(), deadline - time.monotonic()), 0.0))
