"""The JVM's own lock on a lake, for spark-submit, which starts the JVM before us.

There the JVM cannot inherit our `flock`. It takes a file lock of its own on a second file, which is
free only when that JVM is dead. Every driver takes it, so that each kind sees the other.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pipelines.jvm.session import JVM_LOST
from storage.errors import LakeLockedError
from storage.files.location import LakeLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NAME = "_driver.jvm.lock"


def _locked(place: LakeLocation) -> LakeLockedError:
    return LakeLockedError(
        f"the lake {place.path} is written by the JVM of another driver, whose Python can "
        "be dead already: one driver at a time; stop it first"
    )


@contextmanager
def file_lock(place: LakeLocation) -> Iterator[None]:
    """Holds the same lock from Python, for a process that writes a lake without a JVM.

    Errors: LakeLockedError if a JVM has it.
    """
    if not place.is_local:
        yield
        return
    with open(f"{place.path}/{_NAME}", "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # java.nio takes locks of this kind
        except OSError as error:
            raise _locked(place) from error
        yield


class JvmLock:
    """A java.nio lock on `<lake>/_driver.jvm.lock`, held by the session's JVM; none on a store.

    Errors: LakeLockedError if another JVM has it.
    """

    def __init__(self, spark: SparkSession, place: LakeLocation) -> None:
        self._file: Any = None
        if not place.is_local:
            return
        jvm: Any = spark._jvm
        file = jvm.java.io.RandomAccessFile(f"{place.path}/{_NAME}", "rw")
        if file.getChannel().tryLock() is None:
            file.close()
            raise _locked(place)
        self._file = file

    def release(self) -> None:
        """Gives the lock back; a JVM that has ended holds none."""
        if self._file is not None:
            with suppress(*JVM_LOST):
                self._file.close()
            self._file = None
