"""How many queues the topics of a lake have, as a producer asks for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final

from txlake._consumer_extra import pa as pa  # the first import: it says what to install
from txlake._lake import Lake, Topic
from txlake._numbers import require_whole
from txlake._process import ProcessGuard, note_delta_is_used
from txlake.errors import LakeError

REFRESH_MS: Final = 1_000


class LakeQueueCounts(Mapping[str, int]):
    """The number of queues of each real topic, as the lake's catalog says it: `queue_counts`.

    A count is at most `refresh_ms` old when it is used; an older one is read again first, which
    costs a look at the catalog's log. Several producers and threads can share one. It needs the
    extra `consumer`, and may only read the lake.

    Errors: LakeError in one sentence, when it is made or used: a count that is too old is not used.
    StoreAwayError if the lake's store does not answer; ClosedError in a process that forked;
    ValueError for a `refresh_ms` that is not allowed.
    """

    def __init__(
        self,
        lake: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        refresh_ms: int = REFRESH_MS,
    ) -> None:
        require_whole("refresh_ms", refresh_ms, 0)
        note_delta_is_used()
        self._guard = ProcessGuard("LakeQueueCounts")
        self._lake = Lake(lake, storage_options)
        self._refresh_s = refresh_ms / 1000
        self._lock = threading.Lock()
        self._topics: Mapping[str, Topic] = {}
        self._fresh_until = 0.0

    def __getitem__(self, topic: str) -> int:
        return self._read()[topic].queue_count

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> Mapping[str, Topic]:
        """Returns the topics, read anew if they are too old."""
        self._guard.check()

        with self._lock:
            now = time.monotonic()
            if now >= self._fresh_until:
                self._topics = self._lake.topics()
                if not self._lake.has_catalog():
                    raise LakeError(
                        f"{self._lake.path}: the lake's catalog is gone; without it a key has no "
                        "queue"
                    )
                self._fresh_until = now + self._refresh_s

            return self._topics
