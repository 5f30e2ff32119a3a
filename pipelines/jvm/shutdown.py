"""The end of the driver's JVM: a signal stops the driver, which finishes its epoch first.

The JVM gets one where a service manager sends SIGTERM to all processes of a service, and where
spark-submit is the process that is stopped, by SIGTERM or Ctrl-C. Spark's own hook would end its
work at once, beneath a running epoch.

A JVM that ends for another reason, out of memory say, ends at once: that is no stop, and the driver
has to fail.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from py4j.protocol import Py4JError

from pipelines.jvm.spark_private import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long the JVM waits for the driver, which gives a stop up before.
_WAIT_S: Final = 15
# Hadoop calls the hook of the highest number first; Spark's is 40.
_BEFORE_SPARK: Final = 100
_AFTER_SPARK: Final = 1
# The name of spark-submit's thread that copies Python's output, and the time limit for it.
_COPIER: Final = "redirect output"
_COPY_S: Final = 2.0
_POLL_S: Final = 0.02
# The exit code of a JVM that has ended by itself.
_NOT_BY_SIGNAL: Final = 1


class JvmShutdown:
    """The hooks of a driver in its JVM. Input: `stop` asks the driver to end.

    1. The JVM gets a signal: the driver is asked to stop, and the JVM waits until it has.
       Where it got none, it ends here, with an exit code of its own.
    2. Spark ends.
    3. Where spark-submit has started the driver, the exit code is the JVM's: it ends with 0, not
       with that of the signal, as soon as the driver's last line is out.
    """

    def __init__(self, spark: SparkSession, stop: Callable[[], None]) -> None:
        self._jvm = jvm_of(spark)
        self._stop = stop
        self._has_begun = threading.Event()
        self._is_stopped = threading.Event()
        self._is_last_line_out = threading.Event()
        self._is_over = threading.Event()

        self._hooks = [self._add(self._wait_for_driver, _BEFORE_SPARK)]
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            self._hooks.append(self._add(self._end_with_0, _AFTER_SPARK))

    def release(self) -> None:
        """Lets the JVM end: the driver has stopped."""
        self._is_stopped.set()
        if self._has_begun.is_set():
            return

        with suppress(Py4JError, OSError):  # the JVM has ended
            for hook in self._hooks:
                self._manager.removeShutdownHook(hook)

    def finish(self) -> None:
        """Waits for the end of a JVM that got a signal and has to exit with 0."""
        self._is_last_line_out.set()
        if self._has_begun.is_set() and len(self._hooks) > 1:
            self._is_over.wait(_WAIT_S)

    @property
    def _manager(self) -> Any:
        return self._jvm.org.apache.hadoop.util.ShutdownHookManager.get()

    def _add(self, run: Callable[[], None], priority: int) -> Any:
        # A thread, for Hadoop asks a hook for its hash, which Python's object does not give.
        hook = self._jvm.java.lang.Thread(_Runnable(run))

        seconds = self._jvm.java.util.concurrent.TimeUnit.SECONDS
        self._manager.addShutdownHook(hook, priority, _WAIT_S, seconds)
        return hook

    def _wait_for_driver(self) -> None:
        if not self._is_by_signal():
            self._halt(_NOT_BY_SIGNAL)
            return

        self._has_begun.set()
        self._stop()
        self._is_stopped.wait(_WAIT_S)

    def _end_with_0(self) -> None:
        if not self._is_last_line_out.wait(_WAIT_S):
            return  # the driver has failed, and says so by its own code

        sys.stdout.flush()
        sys.stderr.flush()
        null_fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_fd, 1)
        os.dup2(null_fd, 2)  # so the copier comes to the end of the output

        deadline = time.monotonic() + _COPY_S
        with suppress(Py4JError, OSError):  # it ends beneath the call
            while _COPIER in self._threads() and time.monotonic() < deadline:
                time.sleep(_POLL_S)

        self._halt(0)
        self._is_over.set()

    def _is_by_signal(self) -> bool:
        """Returns whether a signal ends the JVM: Java runs its handler in a thread of that name."""
        return any(name.startswith("SIG") and name.endswith(" handler") for name in self._threads())

    def _threads(self) -> list[str]:
        threads = self._jvm.java.lang.Thread.getAllStackTraces().keySet().toArray()
        return [str(thread.getName()) for thread in threads]

    def _halt(self, code: int) -> None:
        with suppress(Py4JError, OSError):  # it ends beneath the call
            self._jvm.java.lang.Runtime.getRuntime().halt(code)


class _Runnable:
    """A function of Python as Java's Runnable."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    class Java:
        """The interface, where py4j looks for it."""

        implements: ClassVar = ["java.lang.Runnable"]
