"""The driver: one process that runs the stream and keeps it running.

It takes the lake's locks, starts Spark, and does the work (`pipelines/job/driver_loop.py`).
A standby takes the locks when Kafka has elected it.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.epoch.runner import EpochRunner
from pipelines.errors import JobError, StorageError
from pipelines.job.driver_lock import DriverLock
from pipelines.job.driver_loop import DriverLoop, DriverOptions
from pipelines.job.election import Election
from pipelines.job.outage import OutageBackoff
from pipelines.job.startable import require_startable
from pipelines.jvm.session import listen_for_callbacks, start_session
from pipelines.jvm.shutdown import JvmShutdown
from pipelines.kafka_client.java_config import validate_with_java
from pipelines.metrics.reporter import Reporter, Standing
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.tasks import malloc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Driver:
    """The runner of the stream on one lake.

    Input: the options, as in `DriverOptions`; `on_jvm_signal`: called when a signal ends the JVM,
    which waits for the driver meanwhile; without it the driver is stopped.
    """

    def __init__(
        self,
        settings: Settings,
        on_epoch: Callable[[Plan, float], None] | None = None,
        *,
        is_standby: bool = False,
        now_ms: Callable[[], int] | None = None,
        skip_checks: frozenset[str] = frozenset(),
        on_jvm_signal: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._options = DriverOptions(on_epoch, is_standby, now_ms, skip_checks)
        self._stop = threading.Event()
        self._loop: DriverLoop | None = None
        self._election: Election | None = None
        self._on_jvm_signal = on_jvm_signal or self.stop
        self._jvm_shutdown: JvmShutdown | None = None
        self._reporter = Reporter(settings, self._driver_status)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    @property
    def epochs(self) -> EpochRunner | None:
        """Returns the runner of the epochs; None until Spark has started."""
        return None if self._loop is None else self._loop.epochs

    @property
    def is_streaming(self) -> bool:
        """Returns whether the stream runs."""
        return self._loop is not None and self._loop.is_streaming

    @property
    def is_stopping(self) -> bool:
        """Returns whether the driver was asked to end."""
        return self._stop.is_set()

    def _driver_status(self) -> Standing:
        election = self._election
        if election is None:
            return Standing()

        return Standing(election.is_active, election.is_waiting, self.is_streaming)

    def stop(self) -> None:
        """Asks the driver to end after the running epoch; safe in a signal handler."""
        self._stop.set()

    def finish(self) -> None:
        """Ends the JVM with exit code 0 if `stop` came by a signal to it. Call it last."""
        if self._jvm_shutdown is not None:
            self._jvm_shutdown.finish()

    def run(self) -> None:
        """Runs until `stop`.

        Errors: JobError, LakeError, JavaError, JarError, SettingsError: one sentence each.
        """
        lake = Lake(self._settings.lake.location(), is_driver=True)
        try:
            require_startable(self._settings)
            with self._reporter.serving():
                self._run_locked(lake)
        except Exception as error:
            sign = next((sign for sign in _NOT_WRITABLE if sign in str(error)), None)
            if sign is None or isinstance(error, JobError):
                raise

            raise StorageError(
                f"the lake {lake.path} or its checkpoint cannot be written ({sign}): nothing is "
                "lost; make it writable and start again"
            ) from error

    def _run_locked(self, lake: Lake) -> None:
        settings = self._settings
        malloc.give_back_large_arrays()

        backoff = OutageBackoff(
            f"Kafka at {settings.kafka.bootstrap_servers}", f"the store of {lake.path}", self._stop
        )
        if not backoff.until_done(lake.check):
            return

        lock = DriverLock(lake.location, self.owner, self._stop)
        election = Election(settings.kafka, lake.path, self.owner)
        self._election = election
        try:
            spark = self._start_spark(lock, election)
            validate_with_java(spark, settings.kafka)
            listen_for_callbacks(spark)
            self._jvm_shutdown = JvmShutdown(spark, self._on_jvm_signal)

            self._loop = DriverLoop(
                settings,
                self.owner,
                self._options,
                self._stop,
                spark,
                lake,
                lock,
                election,
                self._reporter,
                backoff,
            )
            self._loop.run()
        finally:
            self._reporter.close()
            lock.release()
            election.leave()  # another driver goes on now
            if self._jvm_shutdown is not None:
                self._jvm_shutdown.release()

    def _start_spark(self, lock: DriverLock, election: Election) -> SparkSession:
        """Starts Spark; a driver that is no standby acquires the lock and joins the election."""
        spark_settings = self._settings.spark
        if self._options.is_standby:
            return start_session("txlake", spark_settings, is_logged=True)

        fds = lock.acquire()
        election.join()
        return start_session("txlake", spark_settings, fds, is_logged=True)


# The system's words for a full or read-only disk; each library passes them on.
_NOT_WRITABLE = (
    "No space left on device",
    "Read-only file system",
    "Disk quota exceeded",
    "File too large",
)
