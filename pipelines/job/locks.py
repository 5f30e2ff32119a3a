"""The two locks of a lake on a local disk, held by the driver and by its JVM; none on a store.

They say sooner and more clearly than Kafka that another driver is active. A standby acquires them
when Kafka has elected it. A process that is suspended keeps them; Kafka does not count it any more,
so the standby goes on without them, and acquires them as soon as they are free.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pipelines.jvm.lock import JvmLock
from storage.errors import LakeLockedError
from storage.files.location import LakeLocation
from storage.lake.lock import LakeLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("txlake.driver")

# The JVM of a driver that was killed ends within a second.
_DYING_S = 3.0
_PAUSE_S = 0.1


class Locks:
    """A driver's locks on one lake."""

    def __init__(self, place: LakeLocation, owner: str, stop: threading.Event) -> None:
        self._place = place
        self._owner = owner
        self._stop = stop
        self._driver_lock: LakeLock | None = None
        self._jvm_lock: JvmLock | None = None

    def acquire(self) -> tuple[int, ...]:
        """Acquires the driver's lock. Output: the descriptors that its JVM must inherit.

        Errors: LakeLockedError naming the process that has it.
        """
        self._driver_lock = self._driver_lock or LakeLock(self._place, self._owner)
        return self._driver_lock.fds

    def acquire_both(self, spark: SparkSession) -> None:
        """Acquires the locks that are not ours yet. Errors: LakeLockedError."""
        self.acquire()
        self._jvm_lock = self._jvm_lock or JvmLock(spark, self._place)

    def take_over(self, spark: SparkSession) -> None:
        """Acquires both as soon as processes that are dying release them; else goes on without."""
        deadline = time.monotonic() + _DYING_S

        while True:
            try:
                self.acquire_both(spark)
                return
            except LakeLockedError as error:
                if time.monotonic() > deadline or self._stop.wait(_PAUSE_S):
                    log.warning(
                        "going on without the lake's lock, since Kafka does not count its holder "
                        "any more: %s",
                        error,
                    )
                    return

    def acquire_if_free(self, spark: SparkSession) -> None:
        """Acquires the locks that are free by now."""
        with suppress(LakeLockedError):
            self.acquire_both(spark)

    def release(self) -> None:
        """Releases the locks; a JVM that inherited the first keeps it until it ends."""
        if self._jvm_lock is not None:
            self._jvm_lock.release()
        if self._driver_lock is not None:
            self._driver_lock.release()

        self._driver_lock = None
        self._jvm_lock = None
