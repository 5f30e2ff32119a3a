"""The driver: one process that runs the stream and keeps it running.

It takes the lake's lock, starts Spark, checks what it rests on, finishes a planned epoch and then
runs the stream: the half, op, schedule and admin topics with a tick, so that time passes without
data. The stream's own checkpoint holds no truth: each start makes a fresh one at the lake's
committed ranges, and the lake decides where the log goes on.

When Kafka is away the query ends after a while; the driver says so, waits and starts it again.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.ask import Asker
from pipelines.clock import EpochClock
from pipelines.cluster import require_seen
from pipelines.epoch import Epochs
from pipelines.epoch_settings import EpochSettings
from pipelines.errors import ClockError, JobError, KafkaAwayError, StartError, StorageError
from pipelines.jvm_lock import JvmLock
from pipelines.kafka_topics import KafkaTopics
from pipelines.maintain import Maintainer
from pipelines.session import start_session
from pipelines.settings import Settings
from pipelines.stream import Stream
from storage.epochs import Plan
from storage.errors import LakeError
from storage.lake import Lake
from storage.lock import LakeLock
from storage.rows import instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("txlake.driver")

CLOCK_DIFFERENCE_MS_MAX = 60_000
_PING_INTERVAL_S = 3_600.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0)
_BELONGS_TO = "belongs-to-lake"


class Driver:
    """Run the reconcile stream on one lake.

    `on_epoch` is told every committed plan. `tolerate` is for tests alone: "timestamp_type" and
    "clock" switch those start checks off, and `now_ms` hands in a clock.
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
        self._pinged = 0.0
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.epochs: Epochs | None = None
        self.is_streaming = False

    def stop(self) -> None:
        """Ask the driver to end after the running epoch; safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Run until `stop`.

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
        asker = Asker(
            settings.kafka.bootstrap_servers,
            settings.kafka.client,
            settings.kafka.check_topic_prefix,
            settings.transaction.ask_timeout_ms,
            settings.transaction.message_bytes_max,
        )
        away = _Away(settings.kafka.bootstrap_servers)
        maintainer = Maintainer(
            lake,
            settings.maintenance_limits(),
            settings.maintenance.slice_ms,
            settings.kafka.admin_topic,
            self._stop.is_set,
        )
        clock: EpochClock | None = None
        epochs: Epochs | None = None
        try:
            while not self._stop.is_set():
                try:
                    if epochs is None:
                        clock = EpochClock()
                        epochs = self.epochs = self._epochs(spark, lake, kafka, asker, clock)
                    try:
                        self._prepare(kafka, epochs, clock)
                    except Exception as error:
                        raise _told(error, epochs) from error
                    away.is_over()
                    self._stream(spark, lake, kafka, epochs, clock, maintainer)
                except KafkaAwayError as error:
                    self._stop.wait(away.wait_s(error))
        finally:
            if epochs is not None:
                epochs.close()
            asker.close()

    def _epochs(
        self, spark: SparkSession, lake: Lake, kafka: KafkaTopics, asker: Asker, clock: EpochClock
    ) -> Epochs:
        settings = self._settings
        return Epochs(
            spark,
            lake,
            kafka,
            asker,
            EpochSettings.of(settings, self.owner, spark),
            self._handed_in_now_ms or clock.now_ms,
        )

    def _prepare(self, kafka: KafkaTopics, epochs: Epochs, clock: EpochClock | None) -> None:
        """Check Kafka and finish what was begun."""
        progress = epochs.take_up()
        newest = progress.unfinished or progress.last
        if newest is None:
            kafka.create_missing()
        epochs.check_identity(newest)
        kafka.check("timestamp_type" not in self._tolerate)
        recovered = epochs.recover(progress)
        if epochs.last is not None and clock is not None:
            clock.not_before(epochs.last.epoch_at)
        self._compare_clocks(kafka, epochs, clock)
        if recovered is not None:
            log.info("finished epoch %d, which an earlier run had planned", recovered.epoch)

    def _compare_clocks(self, kafka: KafkaTopics, epochs: Epochs, clock: EpochClock | None) -> None:
        offset, broker_ms = kafka.ping(self.owner)
        epochs.own_pings[offset] = broker_ms
        self._pinged = time.monotonic()
        if clock is None or "clock" in self._tolerate:
            return
        ours = clock.raw_ms()
        if abs(ours - broker_ms) > CLOCK_DIFFERENCE_MS_MAX:
            raise ClockError(
                f"this machine's clock says {_text(ours)} and the broker's {_text(broker_ms)}: "
                f"more than {CLOCK_DIFFERENCE_MS_MAX // 1000} s apart; set the one that is wrong"
            )

    def _stream(
        self,
        spark: SparkSession,
        lake: Lake,
        kafka: KafkaTopics,
        epochs: Epochs,
        clock: EpochClock | None,
        maintainer: Maintainer,
    ) -> None:
        """Run the query until it is to stop, or ends by itself."""

        def before_batch() -> None:
            if time.monotonic() - self._pinged > _PING_INTERVAL_S:
                self._compare_clocks(kafka, epochs, clock)

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
            raise _told(failure, epochs)

    def _fresh_checkpoint(self, lake: Lake) -> Path:
        """Make an empty checkpoint for this run, in the lake or where the settings say.

        Errors: StartError when that folder belongs to another lake.
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


# How the system says that a disk takes no more, through whichever library wrote.
_NOT_WRITABLE = (
    "No space left on device",
    "Read-only file system",
    "Disk quota exceeded",
    "File too large",
)
# How Spark and the Kafka clients say that the broker does not answer.
_AWAY_SIGNS = (
    "TimeoutException", "Timed out", "timed out", "Connection refused", "DisconnectException",
    "No resolvable bootstrap", "Failed to construct kafka", "BROKER_NOT_AVAILABLE",
    "Timeout of", "Cannot fetch offset",
)  # fmt: skip


def _told(error: BaseException, epochs: Epochs) -> BaseException:
    """Turn a failed query's error into ours where we know it."""
    if isinstance(error, (JobError, LakeError)):
        return error
    text = str(error)
    if any(sign in text for sign in _AWAY_SIGNS):
        return KafkaAwayError(f"the stream lost Kafka: {text.strip().splitlines()[0][:300]}")
    if "Could not read records in offset" in text or "some data may have been lost" in text.lower():
        epochs.start_offsets()  # names what is lost, if Kafka can still tell
    return error


class _Away:
    """Say once in a while that Kafka is away, and when it is back."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._since: float | None = None
        self._tries = 0

    def wait_s(self, error: KafkaAwayError) -> float:
        self._since = self._since or time.monotonic()
        pause = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._tries += 1
        log.warning(
            "Kafka at %s is away since %.0f s; trying again in %.0f s (%s)",
            self._servers, time.monotonic() - self._since, pause, error,
        )  # fmt: skip
        return pause

    def is_over(self) -> None:
        if self._since is not None:
            log.warning(
                "Kafka at %s is back after %.0f s", self._servers, time.monotonic() - self._since
            )
        self._since, self._tries = None, 0


def _text(ms: int) -> str:
    return instant(ms).isoformat(timespec="seconds")
