"""The lock of a lake on a local disk, held by the driver and, by inheritance, its JVM.

It says sooner and more clearly than Kafka that another driver is active. A standby acquires it when
Kafka has elected it. A process that is suspended keeps it; Kafka does not count that one any more,
so the standby goes on without the lock, and acquires it as soon as it is free. On a store there is
none.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from storage.errors import LakeLockedError
from storage.files.location import LakeLocation
from storage.lake.lock import LakeLock

log = logging.getLogger("txlake.driver")

# The JVM of a driver that was killed ends within a second.
_DYING_S = 3.0
_PAUSE_S = 0.1


class DriverLock:
    """A driver's lock on one lake."""

    def __init__(self, location: LakeLocation, owner: str, stop: threading.Event) -> None:
        self._location = location
        self._owner = owner
        self._stop = stop
        self._lock: LakeLock | None = None

    def acquire(self) -> tuple[int, ...]:
        """Acquires the lock if it is not ours yet. Output: what its JVM must inherit.

        Errors: LakeLockedError naming the process that has it.
        """
        self._lock = self._lock or LakeLock(self._location, self._owner)
        return self._lock.fds

    def take_over(self) -> None:
        """Acquires it as soon as processes that are dying release it; else goes on without."""
        deadline = time.monotonic() + _DYING_S

        while True:
            try:
                self.acquire()
                return
            except LakeLockedError as error:
                if time.monotonic() > deadline or self._stop.wait(_PAUSE_S):
                    log.warning(
                        "going on without the lake's lock, since Kafka does not count its holder "
                        "any more: %s",
                        error,
                    )
                    return

    def acquire_if_free(self) -> None:
        """Acquires it if it is free by now."""
        with suppress(LakeLockedError):
            self.acquire()

    def release(self) -> None:
        """Releases it; a JVM that inherited it keeps it until it ends."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None
