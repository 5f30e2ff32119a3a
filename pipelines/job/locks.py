"""The two locks of a lake on a local disk, held by the driver and by its JVM; none on a store.

They say sooner and more clearly than Kafka that another driver is there. A standby takes them when
Kafka has elected it. A process that is suspended keeps them; Kafka does not count it any more, so
the standby goes on without them, and takes them as soon as they are free.
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
        self._place, self._owner, self._stop = place, owner, stop
        self._ours: LakeLock | None = None
        self._of_jvm: JvmLock | None = None

    def take(self) -> tuple[int, ...]:
        """Takes the driver's lock. Output: the descriptors that its JVM must inherit.

        Errors: LakeLockedError naming the process that has it.
        """
        self._ours = self._ours or LakeLock(self._place, self._owner)
        return self._ours.fds

    def take_both(self, spark: SparkSession) -> None:
        """Takes what is not taken yet. Errors: LakeLockedError."""
        self.take()
        self._of_jvm = self._of_jvm or JvmLock(spark, self._place)

    def take_over(self, spark: SparkSession) -> None:
        """Takes both as soon as processes that are dying give them back; else goes on without."""
        deadline = time.monotonic() + _DYING_S
        while True:
            try:
                self.take_both(spark)
                return
            except LakeLockedError as error:
                if time.monotonic() > deadline or self._stop.wait(_PAUSE_S):
                    log.warning(
                        "going on without the lake's lock, since Kafka does not count its holder "
                        "any more: %s", error,
                    )  # fmt: skip
                    return

    def take_if_free(self, spark: SparkSession) -> None:
        """Takes what is free by now."""
        with suppress(LakeLockedError):
            self.take_both(spark)

    def release(self) -> None:
        """Gives the locks back; a JVM that inherited the first keeps it until it ends."""
        if self._of_jvm is not None:
            self._of_jvm.release()
        if self._ours is not None:
            self._ours.release()
        self._ours = self._of_jvm = None
