"""The loop of a driver: it waits for its election, recovers, and runs the stream.

1. Kafka elects it among the lake's drivers (`pipelines/job/election.py`).
2. It makes the tables of a new lake, checks Kafka and the clocks, and finishes a planned epoch.
3. It runs the stream: the half, op, schedule and admin topics with a tick, so that time passes
   without data. It goes on where the lake ends; each time the stream has a fresh checkpoint.

When Kafka is away the query ends after a while. The driver logs it, waits, and begins again at 1.
When Kafka refuses the driver's login or certificate, or a right, at its start, the driver ends; one
that Kafka has accepted before tries again.
"""

from __future__ import annotations

import datetime as dt
import logging
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.epoch.checks import KafkaCheckSender
from pipelines.epoch.clock import EpochClock
from pipelines.epoch.land import SparkLander
from pipelines.epoch.listener import EpochListener
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.runner import EpochRunner
from pipelines.errors import (
    JobError,
    KafkaAwayError,
    KafkaRefusedError,
    LargeEpochError,
    LostCheckpointError,
)
from pipelines.job.checkpoint import checkpoint_folder, fresh_checkpoint, take_folder
from pipelines.job.clock_skew import ClockSkewCheck
from pipelines.job.driver_lock import DriverLock
from pipelines.job.election import Election
from pipelines.job.landing_mark import DiedLanding, LandingMark
from pipelines.job.leadership import Leadership
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.job.outage import OutageBackoff, classify_error
from pipelines.job.standby import StandbyWait
from pipelines.job.stream import Stream
from pipelines.job.warm_up import StandbyWarmUp
from pipelines.jvm.cluster import require_shared_lake
from pipelines.jvm.heap import landing_heap
from pipelines.jvm.session import JVM_LOST, jvm_error
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.intake import Intake
from pipelines.publish.retention import PublishedPositions
from pipelines.settings import MetricsSettings, Settings
from storage.errors import LakeError, OwnerError, StoreAwayError
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS, read_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("txlake.driver")

_TOPICS_CHECKED_S = 20.0  # between two looks at the topics of a running job
_FENCED_MAX = 3  # by a driver that was replaced and has not noticed yet


@dataclass(frozen=True)
class DriverOptions:
    """The options of a driver.

    `on_epoch`: called with every committed plan and its seconds; `is_standby`: it waits while
    another driver is active. For tests alone: `skip_checks` switches the start checks
    "timestamp_type" and "clock" off, and `now_ms` hands in a clock.
    """

    on_epoch: Callable[[Plan, float], None] | None = None
    is_standby: bool = False
    now_ms: Callable[[], int] | None = None
    skip_checks: frozenset[str] = frozenset()


class DriverLoop:
    """The loop of one driver on one lake.

    Input: `stop`: set when the loop is to end. `epochs`: the runner of its epochs; `is_streaming`:
    whether its stream runs.
    """

    def __init__(
        self,
        settings: Settings,
        owner: str,
        options: DriverOptions,
        stop: threading.Event,
        spark: SparkSession,
        lake: Lake,
        lock: DriverLock,
        election: Election,
        listener: EpochListener,
        backoff: OutageBackoff,
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._options = options
        self._stop = stop
        self._spark = spark
        self._lake = lake
        self._lock = lock
        self._election = election
        self._backoff = backoff
        self._kafka = KafkaAdmin(settings, settings.kafka.topics())

        self._leadership = Leadership(lake, owner, election, stop)
        self._standby_wait = StandbyWait(
            lake.path,
            owner,
            election,
            self._leadership.active_owner,
            stop,
            self._on_kafka_reply,
            self._rehearse,
            is_standby=options.is_standby,
        )

        self._clock = EpochClock()
        self._clock_skew = ClockSkewCheck(
            settings, owner, self._clock, is_tolerant="clock" in options.skip_checks
        )

        self._check_sender = KafkaCheckSender(
            settings.kafka.bootstrap_servers,
            settings.kafka.client,
            settings.kafka.check_topic_prefix,
            settings.transaction.ask_timeout_ms,
            settings.transaction.message_bytes_max,
            settings.security.keys,
        )
        self._intake = Intake.of(settings, landing_heap(spark))
        lander = SparkLander(spark)
        self.epochs = EpochRunner(
            lander,
            lake,
            self._kafka,
            self._check_sender,
            EpochSettings.of(settings, owner, lander.parallelism, self._intake),
            options.now_ms or self._clock.now_ms,
            listener,
        )
        self.is_streaming = False

        self._maintenance: MaintenanceScheduler  # of a term
        self._checkpoint: Path  # of a term, as is the mark in it
        self._mark: LandingMark | None = None
        self._died: DiedLanding | None = None  # a landing that an earlier run died of
        self._warm_up = StandbyWarmUp(spark, settings, self._intake, self._kafka, lake)
        self._topics_checked_at = 0.0  # monotonic s
        self._executors_see_lake = False
        self._was_accepted = False  # by Kafka
        self._fenced_epochs = 0  # that another driver has written, since our last one

    def run(self) -> None:
        """Runs terms until `stop`. Errors: JobError, LakeError."""
        with closing(self._check_sender), closing(self.epochs):
            self.epochs.warm_up()

            while not self._stop.is_set():
                try:
                    self._run_term()
                except (KafkaAwayError, StoreAwayError) as error:
                    if isinstance(error, KafkaRefusedError) and not self._was_accepted:
                        raise
                    self._backoff.wait(error)
                except OwnerError as error:
                    self._fenced_epochs += 1
                    is_replaced = self._fenced_epochs > _FENCED_MAX
                    if is_replaced or self._leadership.fencing_error() is not None:
                        raise
                    log.warning("%s; but Kafka has elected this one: it reads the lake anew", error)

    def _run_term(self) -> None:
        """Waits for an election; works until `stop`, or until the stream ends by itself."""
        try:
            self._check_kafka()
            if not self._standby_wait.wait():
                return

            self._was_accepted = True
            if self._election.term != self._leadership.term:
                self._on_elected()
            self._recover()
        except Exception as error:
            raise self._classify(error) from error

        self._stream()

    def _check_kafka(self) -> None:
        """Checks that Kafka is the lake's; makes the topics of a new lake. Joins the election.

        Kafka can elect when the admin topic exists.
        """
        progress = read_progress(self._lake) if self._lake.exists() else NO_PROGRESS
        newest = progress.newest

        self._kafka.require_rights()
        if newest is None:
            self._kafka.create_missing()
            self._kafka.require_rights()
        else:
            self.epochs.check_identity(newest)
        self._election.join()

    def _on_elected(self) -> None:
        """Begins a term: acquires the lock, and reads the lake anew."""
        if self._options.is_standby:
            self._lock.take_over()
        # A standby can have waited for days, and a machine can have slept before it was elected
        # again: the monotonic clock does not count that. `epoch_at` never goes back anyway.
        self._clock.start()

        self._lake.reset()  # another driver can have written it meanwhile
        self._mark = None
        self._leadership.begin()
        self._maintenance = MaintenanceScheduler(
            self._lake,
            self._settings.maintenance_limits(),
            self._settings.maintenance.slice_ms,
            self._settings.kafka.admin_topic,
            self._stop.is_set,
            self._leadership.require_newest_plan_is_ours,
            PublishedPositions(self._settings),
        )

    def _recover(self) -> None:
        """Checks Kafka and finishes an epoch that an earlier run has planned."""
        epochs = self.epochs
        self._lake.create(dt.datetime.now(dt.timezone.utc))
        self._require_shared_lake()

        progress = epochs.resume()
        epochs.check_identity(progress.newest)
        self._check_topics()
        self._take_checkpoint()
        recovered = self._finish_planned(progress.unfinished)
        self._maintenance.look_back()  # it can have been committed though its answer was lost

        if epochs.last is not None:
            self._clock.not_before(epochs.last.epoch_at)
        self._clock_skew.compare(epochs.own_pings)
        if recovered is not None:
            log.info("finished epoch %d, which an earlier run had planned", recovered.epoch)

    def _take_checkpoint(self) -> None:
        """Takes the checkpoint's folder, and smaller steps if the run before died landing."""
        if self._mark is not None:
            return

        lake_id = self._lake.lake_id()
        configured = self._settings.stream.checkpoint
        self._checkpoint = checkpoint_folder(configured, self._lake.location, lake_id)
        take_folder(self._checkpoint, lake_id)
        self._mark = LandingMark(self._checkpoint)

        self._take_smaller_steps("the last run died while it landed records")

    def _take_smaller_steps(self, reason: str) -> None:
        """Takes smaller steps if a landing has left its mark, and logs it with the reason."""
        assert self._mark is not None
        self._died = self._mark.died()
        if self._died is None:
            return

        self._intake.divisor = self._died.divisor
        log.warning(
            "%s: until they are landed, 1/%d of the usual steps, up to %d bytes a fetch of Kafka "
            "and %d records an epoch",
            reason,
            self._died.divisor,
            self._intake.fetch_bytes,
            self._intake.epoch_offsets,
        )

    def _finish_planned(self, unfinished: Plan | None) -> Plan | None:
        """Finishes a planned epoch; then goes back to the usual steps if it can."""
        recovered = None
        if unfinished is not None and self._mark is not None:
            with self._mark.over(unfinished.landed(), self._intake.divisor):
                recovered = self.epochs.recover()

        self._restore_usual_steps()
        return recovered

    def _restore_usual_steps(self) -> None:
        """Takes the usual steps again if the records are landed that an earlier run died of."""
        last = self.epochs.last
        if self._died is None or last is None or not self._died.is_landed(last.landed()):
            return

        self._died = None
        self._intake.divisor = 1
        log.info("landed what needed smaller steps: the usual steps again")

    def _stream(self) -> None:
        """Runs the query until `stop`, or until it ends by itself."""
        assert self._mark is not None
        checkpoint = fresh_checkpoint(self._checkpoint, self._lake.lake_id())
        stream = Stream(
            self._spark,
            self._settings,
            self._intake,
            self.epochs,
            self._maintenance,
            checkpoint,
            self._mark,
            self._died,
            self._stop,
            self._before_batch,
            self._leadership.require,
            self._on_committed,
            self._backoff.log_recovery,  # a Kafka that has just started can be away again at once
        )

        log.info(
            "running; owner %s; lake %s; Kafka %s; %s",
            self._owner,
            self._lake.path,
            self._settings.kafka.bootstrap_servers,
            metrics_address(self._settings.metrics),
        )

        self.is_streaming = True
        try:
            failure = stream.run()
        except JVM_LOST as lost:
            failure = lost
        finally:
            self.is_streaming = False

        if failure is None:
            self._clear_mark()
            self._restore_usual_steps()
        else:
            self._handle_failure(failure, checkpoint)

    def _handle_failure(self, failure: BaseException, checkpoint: Path) -> None:
        """Prepares the next stream after a failure, or raises the error that the failure is."""
        error = self._classify(failure)

        if isinstance(error, LargeEpochError) and self._intake.epoch_offsets > 1:
            self._take_smaller_steps("records were too large for one epoch")
            return

        if isinstance(error, LostCheckpointError) and self._leadership.fencing_error() is None:
            log.warning("%s: nothing is lost; the stream starts again with another", error)
            # Spark has made parts of it again, in a folder that can have lost our mark.
            shutil.rmtree(checkpoint, ignore_errors=True)
            return

        if isinstance(error, (KafkaAwayError, OwnerError, StoreAwayError)):
            raise error
        raise self._leadership.fencing_error() or error

    def _before_batch(self, has_new_partitions: bool) -> None:
        self._lock.acquire_if_free()

        checked_s = time.monotonic() - self._topics_checked_at
        if has_new_partitions or checked_s > _TOPICS_CHECKED_S:
            self.epochs.check_identity(self.epochs.newest)
            self._check_topics()

        if self._clock_skew.is_due():
            self._clock_skew.compare(self.epochs.own_pings)

    def _check_topics(self) -> None:
        """Checks the configs of the topics as at a start: anybody can change them meanwhile.

        Errors: StartError; KafkaAwayError.
        """
        self._kafka.check("timestamp_type" not in self._options.skip_checks)
        self._topics_checked_at = time.monotonic()

    def _on_committed(self, plan: Plan, seconds: float) -> None:
        self._fenced_epochs = 0
        if self._options.on_epoch is not None:
            self._options.on_epoch(plan, seconds)

    def _require_shared_lake(self) -> None:
        """Checks once that executors see the lake. Errors: StartError."""
        if not self._executors_see_lake:
            require_shared_lake(self._spark, self._lake.location)
            self._executors_see_lake = True

    def _classify(self, error: BaseException) -> BaseException:
        error_of_jvm = jvm_error(self._spark)
        if error_of_jvm is not None:
            return error_of_jvm

        error = classify_error(error, self.epochs)
        if not isinstance(error, (JobError, LakeError)):
            error = self._topics_error() or error

        if isinstance(error, (JobError, LakeError)) and not isinstance(error, LargeEpochError):
            self._clear_mark()
        return error

    def _topics_error(self) -> JobError | None:
        """Returns the error by which a start would refuse the topics: it explains much."""
        try:
            self.epochs.check_identity(self.epochs.newest)
            self._check_topics()
        except KafkaAwayError as away:
            log.debug("the topics could not be read: %s", away)
        except JobError as cause:
            return cause
        return None

    def _clear_mark(self) -> None:
        """Removes the mark of a landing that ended for another reason than its size."""
        if self._mark is not None:
            self._mark.clear()

    def _on_kafka_reply(self) -> None:
        """Handles Kafka's reply while another driver is active; checks this driver's JVM."""
        self._was_accepted = True
        self._backoff.log_recovery()

        error_of_jvm = jvm_error(self._spark)
        if error_of_jvm is not None:
            raise error_of_jvm

    def _rehearse(self) -> None:
        if self._lake.exists():
            self._require_shared_lake()
        self._warm_up.run()


def metrics_address(metrics: MetricsSettings) -> str:
    """Returns where the metrics are."""
    if metrics.port == 0:
        return "no metrics"
    host = f"[{metrics.host}]" if ":" in metrics.host else metrics.host
    return f"metrics http://{host}:{metrics.port}/metrics"
