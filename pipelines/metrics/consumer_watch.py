"""A thread beside the stream that reads the consumer groups now and then.

Consumers write their positions, and what they refuse, into the lake without the driver. A thread
reads them, not an epoch or its maintenance: on a lake of many topics one read takes longer than an
epoch may be held up, and a stream that hangs must not hide a consumer that is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import count_refused
from pipelines.health.consumers import read_unread
from pipelines.settings import Settings
from storage.lake.lake import Lake

log = logging.getLogger("txlake.metrics")

_INTERVAL_S: Final = 30.0


class ConsumerWatch:
    """A thread that reads how consumer groups are, while this driver is active.

    `unread`: rows of `consumers.UNREAD_COLUMNS`; `refused`: of `consumer_retries.COUNT_COLUMNS`;
    None: not known.
    """

    def __init__(self, settings: Settings, is_active: Callable[[], bool]) -> None:
        self._settings = settings
        self._is_active = is_active
        self.unread: Sequence[Row] | None = None
        self.refused: Sequence[Row] | None = None

        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlake-consumers", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and waits for it: at most for the table that it reads.

        A thread that is inside delta-rs when Python's interpreter ends can abort the process. If
        the store is away, a table takes longer; then the limit of a job's stop ends the process.
        """
        self._ending.set()
        self._thread.join()

    def read_once(self) -> None:
        """Reads the lake once; None stands for what cannot be read."""
        if not self._is_active():
            self.unread = self.refused = None
            return

        # Its own object, made anew: the driver's is not shared between threads, and one that is
        # kept would hold the file lists of all tables.
        lake = Lake(self._settings.lake.location())
        now_ms = time.time_ns() // 1_000_000

        self.unread = _read(lambda: read_unread(lake, now_ms, self._ending.is_set))
        if not self._ending.is_set():
            self.refused = _read(lambda: count_refused(lake))

    def _run(self) -> None:
        while not self._ending.is_set():
            self.read_once()
            self._ending.wait(_INTERVAL_S if self._is_active() else 1.0)


def _read(read: Callable[[], Sequence[Row]]) -> Sequence[Row] | None:
    try:
        return read()
    except Exception as error:  # a store that is away; the thread goes on
        log.debug("the consumer groups could not be read: %s", error)
        return None
