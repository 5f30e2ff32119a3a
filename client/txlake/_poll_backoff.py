"""When a waiting consumer reads the lake again: on a disk often, on a store less and less."""

from __future__ import annotations

import time

# An epoch takes about a second.
LOOK_S = 0.05
_GROWTH = 1.5
_TOPICS_S = 2.0


class PollBackoff:
    """The times at which a consumer reads.

    Input: `is_store`: each read is a request, so that pauses grow while nothing comes;
    `pause_s_max`: the longest pause.
    """

    def __init__(self, *, is_store: bool, pause_s_max: float) -> None:
        self.is_store = is_store
        self._pause_s_max = max(pause_s_max, LOOK_S) if is_store else LOOK_S
        self._pause_s = LOOK_S

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
        self._pause_s = LOOK_S if is_new else min(self._pause_s * _GROWTH, self._pause_s_max)
        self._next_at = time.monotonic() + self._pause_s

    def wait(self, deadline: float) -> None:
        """Waits for the next read, at most until a deadline (monotonic s)."""
        now = time.monotonic()
        until = self._next_at if self.is_store else now + LOOK_S
        time.sleep(max(min(until, deadline) - now, 0.0))
