"""The driver: one process that runs the stream and keeps it running.

It takes the lake's lock, starts Spark, checks Kafka and the clocks, finishes a planned epoch and
then runs the stream: the half, op, schedule and admin topics with a tick, so that time passes
without data. The lake says where the log goes on; each start makes a fresh checkpoint for the
stream.

When Kafka is away the query ends after a while. The driver logs it, waits and starts the query
again.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.epoch.ask import Asker
from pipelines.epoch.clock import EpochClock
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.run import Epochs
from pipelines.errors import JobError, KafkaAwayError, StartError, StorageError
from pipelines.job.away import Away, told
from pipelines.job.clocks import Clocks
from pipelines.job.memory import give_back_large_arrays
from pipelines.job.stream import Stream
from pipelines.job.upkeep import Maintainer
from pipelines.jvm.cluster import require_seen
from pipelines.jvm.lock import JvmLock
from pipelines.jvm.session import start_session
from pipelines.kafka_log.broker_clock import BrokerClock
from pipelines.kafka_log.topics import KafkaTopics
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.lock import LakeLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("txlake.driver")

_BELONGS_TO = "belongs-to-lake"


class Driver:
    """The runner of the stream on one lake.

    `on_epoch` takes every committed plan and its seconds. For tests alone: `tolerate` switches the
    start checks "timestamp_type" and "clock" off, and `now_ms` hands in a clock.
    """

    def __init__(
        self,
        settings: Settings,
        on_epoch: Callable[[Plan, float], None] | None = None,
        *,
        now_ms: Callable[[], int] | None = None,
        tolerate: frozenset[str] = frozenset(),
    ) -> None:
        self._settings = settings
        self._on_epoch = on_epoch
        self._handed_in_now_ms = now_ms
        self._tolerate = tolerate
        self._stop = threading.Event()
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.epochs: Epochs | None = None
        self.is_streaming = False

    def stop(self) -> None:
        """Asks the driver to end after the running epoch; safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Runs until `stop`.

        Errors: JobError, LakeError, JavaError, JarError, SettingsError: one sentence each.
        """
        lake = Lake(self._settings.lake.path, is_maintained=True)
        try:
            self._run_alone(lake)
        except Exception as error:
            sign = next((sign for sign in _NOT_WRITABLE if sign in str(error)), None)
            if sign is None or isinstance(error, JobError):
                raise
            raise StorageError(
                f"the lake {lake.path} or its checkpoint cannot be written ({sign}): nothing is "
                "lost; make it writable and start again"
            ) from error

    def _run_alone(self, lake: Lake) -> None:
        settings = self._settings
        give_back_large_arrays()
        lake.check()
        lock = LakeLock(lake.path, self.owner)
        try:
            spark = start_session("txlake", settings.spark, lock.fds)
            jvm_lock = JvmLock(spark, lake.path)
            try:
                lake.create(dt.datetime.now(dt.timezone.utc))
                require_seen(spark, lake.place)
                self._run(spark, lake)
            finally:
                jvm_lock.release()
        finally:
            lock.release()

    def _run(self, spark: SparkSession, lake: Lake) -> None:
        settings = self._settings
        kafka = KafkaTopics(settings, settings.kafka.topics())
        clock = EpochClock()
        clocks = Clocks(
            clock, BrokerClock(settings, self.owner), is_tolerant="clock" in self._tolerate
        )
        of_job = EpochSettings.of(settings, self.owner, spark)
        asker = Asker(
            settings.kafka.bootstrap_servers,
            settings.kafka.client,
            settings.kafka.check_topic_prefix,
            settings.transaction.ask_timeout_ms,
            settings.transaction.message_bytes_max,
        )
        away = Away(settings.kafka.bootstrap_servers)
        maintainer = Maintainer(
            lake,
            settings.maintenance_limits(),
            settings.maintenance.slice_ms,
            settings.kafka.admin_topic,
            self._stop.is_set,
        )
        now_ms = self._handed_in_now_ms or clock.now_ms
        with closing(asker), closing(Epochs(spark, lake, kafka, asker, of_job, now_ms)) as epochs:
            self.epochs = epochs
            epochs.warm_up()
            while not self._stop.is_set():
                try:
                    try:
                        self._prepare(kafka, epochs, clock, clocks)
                    except Exception as error:
                        raise told(error, epochs) from error
                    away.is_over()
                    self._stream(spark, lake, epochs, clocks, maintainer)
                except KafkaAwayError as error:
                    self._stop.wait(away.wait_s(error))

    def _prepare(
        self, kafka: KafkaTopics, epochs: Epochs, clock: EpochClock, clocks: Clocks
    ) -> None:
        """Checks Kafka and finishes an epoch that an earlier run has planned."""
        progress = epochs.take_up()
        newest = progress.unfinished or progress.last
        if newest is None:
            kafka.create_missing()
        epochs.check_identity(newest)
        kafka.check("timestamp_type" not in self._tolerate)
        recovered = epochs.recover(progress)
        if epochs.last is not None:
            clock.not_before(epochs.last.epoch_at)
        clocks.compare(epochs.own_pings)
        if recovered is not None:
            log.info("finished epoch %d, which an earlier run had planned", recovered.epoch)

    def _stream(
        self,
        spark: SparkSession,
        lake: Lake,
        epochs: Epochs,
        clocks: Clocks,
        maintainer: Maintainer,
    ) -> None:
        """Runs the query until `stop`, or until it ends by itself."""

        def before_batch() -> None:
            if clocks.is_due():
                clocks.compare(epochs.own_pings)

        stream = Stream(
            spark,
            self._settings,
            epochs,
            maintainer,
            self._fresh_checkpoint(lake),
            self._stop,
            before_batch,
            self._on_epoch,
        )
        log.info("running; owner %s", self.owner)
        self.is_streaming = True
        try:
            failure = stream.run()
        finally:
            self.is_streaming = False
        if failure is not None:
            raise told(failure, epochs)

    def _fresh_checkpoint(self, lake: Lake) -> Path:
        """Returns an empty checkpoint folder for this run, in the lake or where the settings say.

        Errors: StartError if the folder belongs to another lake.
        """
        configured = self._settings.stream.checkpoint
        folder = Path(configured or f"{lake.path}/_checkpoint")
        lake_id = lake.lake_id()
        mark = folder / _BELONGS_TO
        if mark.exists() and mark.read_text() != lake_id:
            raise StartError(
                f"[stream] checkpoint = {str(folder)!r} belongs to lake {mark.read_text()}, not to "
                f"{lake_id}: give each lake a checkpoint of its own"
            )
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(lake_id)
        for old in folder.glob("run-*"):
            shutil.rmtree(old, ignore_errors=True)
        return folder / f"run-{uuid.uuid4().hex[:12]}"


# The system's words for a full or read-only disk; each library passes them on.
_NOT_WRITABLE = (
    "No space left on device",
    "Read-only file system",
    "Disk quota exceeded",
    "File too large",
)
