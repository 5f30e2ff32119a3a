"""When a consumer that waits looks at the lake again: on a disk often, on a store less and less."""

from __future__ import annotations

import time

# An epoch takes about a second.
LOOK_S = 0.05
_GROWTH = 1.5
_TOPICS_S = 2.0


class PollBackoff:
    """The times of looks.

    Input: `is_store`: each look is a request, so that pauses grow while nothing comes; `most_s`: to
    how much.
    """

    def __init__(self, *, is_store: bool, most_s: float) -> None:
        self._is_store = is_store
        self._most_s = max(most_s, LOOK_S) if is_store else LOOK_S
        self._pause_s = LOOK_S
        self._at = self._topics_at = 0.0

    def are_due(self, *, has_rows: bool) -> bool:
        """Returns whether to look. On a disk, where a look is free, whenever no rows are left."""
        return time.monotonic() >= self._at or not (has_rows or self._is_store)

    def is_for_topics(self, *, knows_all: bool) -> bool:
        """Returns whether this look is also for new topics and queues."""
        now = time.monotonic()
        if self._is_store and knows_all and now < self._topics_at:
            return False
        self._topics_at = now + _TOPICS_S
        return True

    def looked(self, *, is_new: bool) -> None:
        """Notes a look, and whether it found something."""
        self._pause_s = LOOK_S if is_new else min(self._pause_s * _GROWTH, self._most_s)
        self._at = time.monotonic() + self._pause_s

    def wait(self, deadline: float) -> None:
        """Waits for the next look, at most until a deadline (monotonic s)."""
        now = time.monotonic()
        until = self._at if self._is_store else now + LOOK_S
        time.sleep(max(min(until, deadline) - now, 0.0))
