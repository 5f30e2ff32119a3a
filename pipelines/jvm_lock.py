"""The JVM's own lock on a lake, for where spark-submit starts the JVM before us.

There the JVM cannot inherit our `flock`; it takes a file lock of its own on a second file, which is
free only when that JVM is dead. Every driver takes it, so that each kind sees the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.errors import LakeLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JvmLock:
    """A java.nio lock on `<lake>/_driver.jvm.lock`, held by the session's JVM.

    Errors: LakeLockedError when another JVM has it.
    """

    def __init__(self, spark: SparkSession, lake_path: str) -> None:
        self._file: Any = None
        if "://" in lake_path:
            return
        jvm: Any = spark._jvm
        file = jvm.java.io.RandomAccessFile(f"{lake_path}/_driver.jvm.lock", "rw")
        if file.getChannel().tryLock() is None:
            file.close()
            raise LakeLockedError(
                f"the lake {lake_path} is written by the JVM of another driver, whose Python may "
                "be dead already: one driver at a time; stop it first"
            )
        self._file = file

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None
