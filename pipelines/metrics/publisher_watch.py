"""A thread beside the stream that asks how far the publishers are now and then.

Their Kafka can be another one, and away for hours, so no epoch asks it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from pipelines.kafka_client.group_members import MemberGroup
from pipelines.publish.status import PublisherStatus, find_publishers
from pipelines.settings import Settings

log = logging.getLogger("txlake.metrics")

_INTERVAL_S: Final = 30.0
_CLOSE_S: Final = 5.0


class PublisherWatch:
    """A thread that reads the status of all publishers, while this driver is active.

    `statuses`: of each publisher; empty if not known.
    """

    def __init__(self, settings: Settings, is_active: Callable[[], bool]) -> None:
        self._settings = settings
        self._is_active = is_active
        self.statuses: Sequence[PublisherStatus] = ()

        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlake-publishers", daemon=True)

    def start(self) -> None:
        """Starts the thread, if there are publishers."""
        if self._settings.publish:
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, and waits for a look at the lake; a request to Kafka can take longer.

        Inside delta-rs when Python's interpreter ends it could abort the process. It does not touch
        the lake after a request to Kafka that ends later.
        """
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def read_once(self) -> None:
        """Asks once; `statuses` is empty if the lake cannot be read."""
        self.statuses = self._read() if self._is_active() else ()

    def _read(self) -> Sequence[PublisherStatus]:
        try:
            return find_publishers(self._settings, MemberGroup.find, self._ending.is_set)
        except Exception as error:  # a store that is away; the thread goes on
            log.debug("the status of the publishers could not be read: %s", error)
            return ()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.read_once()
            self._ending.wait(_INTERVAL_S if self._is_active() else 1.0)
