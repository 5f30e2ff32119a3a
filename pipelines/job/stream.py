"""The stream: each micro-batch of Spark becomes an epoch, finished while the next one is read.

Spark hands over a micro-batch when the function that got the one before has returned. Here that
function returns when the next micro-batch can be cut, even if the epoch is not committed yet: the
decision and the writes run in a thread of their own, and the next micro-batch is read meanwhile. It
is planned only when the epoch before is committed, so epochs stay one after another. Records that
were read ahead are lost with the process, and read again.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.epoch.runner import EpochRunner, PlannedEpoch
from pipelines.errors import (
    ClockError,
    JobError,
    KafkaAwayError,
    LargeEpochError,
    LostCheckpointError,
    LostInputError,
    StartError,
)
from pipelines.job.checkpoint import keep_in_use
from pipelines.job.landing_mark import DiedLanding, LandingMark
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.job.processor_time import ProcessorTime
from pipelines.job.trigger import Trigger
from pipelines.jvm.session import jvm_error, jvm_has_ended, jvm_pid
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.intake import Intake
from pipelines.kafka_client.options import offsets_json, spark_options
from pipelines.settings import Settings
from storage.errors import LakeError, OwnerError, StoreAwayError
from storage.lake.epochs import Plan
from storage.lake.store_error import store_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("txlake.driver")

QUERY_NAME = "txlake"
# How long Spark may need between two micro-batches beside the trigger's interval. It reads Kafka's
# end offsets up to five times, each of which ends within 20 s; but closing the client between two
# of them has no limit, and did hang.
STALL_TIMEOUT_S = 180.0
_POLL_S = 0.1
# A query that has just handed over a micro-batch is not checked: that takes three calls of the JVM.
LIVENESS_CHECK_AFTER_S = 2.0
# Errors whose sentence is enough, without a traceback; KafkaAwayError is none of them.
_SENTENCE_ERRORS = (
    ClockError,
    LargeEpochError,
    LostCheckpointError,
    LostInputError,
    OwnerError,
    StartError,
    StoreAwayError,
)


class Stream:
    """One query: it runs from where the lake ends until `stop` is set, or something fails.

    It ends, too, when it has landed the records that an earlier run `died` of: the next one takes
    the usual steps again.

    Input: `before_batch`: called before each micro-batch is read, with whether it has new
    partitions; `before_plan`: called before its epoch is planned; `on_epoch`: called with each
    committed plan and the duration of its epoch in s; `after_batch`: called after each micro-batch
    that is done, with or without an epoch.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        intake: Intake,
        epochs: EpochRunner,
        maintenance: MaintenanceScheduler,
        checkpoint: Path,
        mark: LandingMark,
        died: DiedLanding | None,
        stop: threading.Event,
        before_batch: Callable[[bool], None],
        before_plan: Callable[[], None],
        on_epoch: Callable[[Plan, float], None],
        after_batch: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._intake = intake
        self._epochs = epochs
        self._maintenance = maintenance
        self._checkpoint = checkpoint
        self._mark = mark
        self._died = died
        self._stop = stop
        self._before_batch = before_batch
        self._before_plan = before_plan
        self._on_epoch = on_epoch
        self._after_batch = after_batch

        self._starts = epochs.start_offsets()
        self._partitions = set(self._starts)
        self._interval_s = settings.stream.trigger_interval_ms / 1000
        processor_time = ProcessorTime([os.getpid(), jvm_pid(spark)])
        cores = settings.stream.cores_percent / 100
        self._trigger = Trigger(self._interval_s, cores, processor_time)
        self._pace = self._trigger.batch_started()

        self._query_name = QUERY_NAME
        self._failure: BaseException | None = None
        self._returned_at: float | None = None  # from a micro-batch; None while one is here
        self._planning = threading.Lock()
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="txlake-epoch")
        self._running: Future[None] = Future()
        self._running.set_result(None)

    def run(self) -> BaseException | None:
        """Runs the query and its last epoch to the end.

        Output: the error that ended it; None if `stop` did, or if it has landed the records that an
        earlier run died of.
        """
        query = self._start_query()
        try:
            while self._is_alive(query):
                self._stop.wait(_POLL_S)

            with self._planning:  # a planned epoch goes on to its end; no other begins
                wait_for([self._running])

            if self._stop.is_set() or (self._is_through and self._failure is None):
                return None
            failure = self._failure or query.exception() or StartError("the stream ended by itself")
            return self._classify(failure)
        finally:
            self._stop_query(query)
            self._finisher.shutdown(wait=True)

    def _start_query(self) -> StreamingQuery:
        source = kafka_stream(self._spark, self._settings, self._intake, self._starts)
        self._returned_at = time.monotonic()
        self._query_name = _unused_query_name(self._spark)
        return (
            source.writeStream.queryName(self._query_name)
            .foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime="0 seconds")  # `_run_epoch` waits
            .start()
        )

    def _stop_query(self, query: StreamingQuery) -> None:
        try:
            query.stop()
        except Exception as error:
            if jvm_error(self._spark) is None:
                log.warning(
                    "Spark cannot end the query %s: it is left behind, and no epoch comes from it "
                    "any more",
                    self._query_name,
                )
            log.debug("stopping the stream: %s", error)

    def _is_alive(self, query: StreamingQuery) -> bool:
        """Returns whether nothing has ended the query.

        It is active until its source is closed, even if it has failed before.
        """
        if self._stop.is_set() or self._is_ended_by_run or self._is_through:
            return False

        if jvm_has_ended(self._spark):
            self._failure = self._failure or jvm_error(self._spark)
            return False

        returned_at = self._returned_at
        silent_s = 0.0 if returned_at is None else time.monotonic() - returned_at
        if self._failure is None and silent_s < LIVENESS_CHECK_AFTER_S:
            return True

        if silent_s > self._interval_s + STALL_TIMEOUT_S:
            self._failure = self._failure or KafkaAwayError(
                f"the stream has cut no micro-batch for {silent_s:.0f} s: it waits for Kafka"
            )
            return False
        return query.isActive and query.exception() is None

    def _on_batch(self, _batch: DataFrame, batch_id: int) -> None:
        self._returned_at = None
        self._pace = self._trigger.batch_started()

        try:
            if self._failure is not None:  # of an epoch that ended between two micro-batches
                raise self._failure

            if not self._is_ending:
                self._run_epoch(batch_id)
            if not self._is_ending:
                self._epochs.prefetch_end_offsets()
        except BaseException as error:
            self._failure = self._failure or self._classify(error)
            if self._is_ended_by_run:  # raised here, py4j would print it
                return
            raise
        finally:
            self._returned_at = time.monotonic()

    def _classify(self, error: BaseException) -> BaseException:
        """Returns an error as the store's or the checkpoint's, if it is one of theirs.

        Spark writes `metadata` when the query starts, and does not read it again.
        """
        error_of_store = store_error(self._epochs.location, error)
        if error_of_store is not None:
            return error_of_store
        if isinstance(error, (JobError, LakeError)):
            return error

        if not (self._checkpoint / "metadata").exists() and jvm_error(self._spark) is None:
            return LostCheckpointError(f"the stream's checkpoint {self._checkpoint} was deleted")
        return error

    @property
    def _is_ended_by_run(self) -> bool:
        """Returns whether `run` ends the query; one that waits for Kafka is ended by its error.

        An error of one sentence needs no traceback of py4j's beside it.
        """
        return isinstance(self._failure, _SENTENCE_ERRORS)

    @property
    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._failure is not None or self._is_through

    @property
    def _is_through(self) -> bool:
        """Returns whether the records are committed that an earlier run died of."""
        last = self._epochs.last
        if self._died is None or last is None:
            return False
        return self._died.is_landed(last.landed())

    def _run_epoch(self, batch_id: int) -> None:
        """Reads a micro-batch and begins its epoch; waits for it until the next is to be cut."""
        began_at = time.monotonic()
        self._before_plan()  # another driver that has taken over deletes this one's checkpoint

        ends = batch_end_offsets(self._checkpoint, batch_id)
        self._before_batch(not ends.keys() <= self._partitions)
        self._partitions |= ends.keys()
        self._check_start(batch_id)
        keep_in_use(self._checkpoint)

        with self._mark.over(ends, self._intake.divisor):
            landed = self._epochs.land_batch(ends)

        self._running.result()
        with self._planning:
            if self._is_ending:
                return
            self._before_plan()
            epoch = self._epochs.plan(landed)
            wait_s = partial(self._pace.wait_s, has_records=landed.batch is not None)
            self._running = self._finisher.submit(self._finish, epoch, began_at, wait_s)

        wait_for([self._running], self._pace.longest_wait_s())
        if self._running.done():
            self._running.result()
            self._stop.wait(wait_s())

    def _finish(
        self, epoch: PlannedEpoch | None, began_at: float, wait_s: Callable[[], float]
    ) -> None:
        """Finishes an epoch, and maintains the lake until the next micro-batch is due.

        Input: `wait_s` returns the time until that.
        """
        try:
            plan = None
            if epoch is not None:
                plan = epoch.plan
                self._epochs.finish(epoch)
                self._on_epoch(plan, time.monotonic() - began_at)

            self._after_batch()
            self._maintenance.after_batch(plan, wait_s())
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _check_start(self, batch_id: int) -> None:
        """Checks that a micro-batch begins where the lake ends: no gap, no overlap."""
        epochs = self._epochs
        starts = (
            self._starts if batch_id == 0 else batch_end_offsets(self._checkpoint, batch_id - 1)
        )
        landed = {} if epochs.newest is None else epochs.newest.landed()

        for (topic, partition), start in starts.items():
            landed_to = landed.get((topic, partition), start)
            expected = epochs.begins((topic, partition), landed_to)
            is_admin = topic == self._settings.kafka.admin_topic
            if is_admin and epochs.own_pings.covers(range(expected, start)):
                continue

            if expected != start:
                raise StartError(
                    f"batch {batch_id} begins at offset {start} of {topic} partition {partition}, "
                    f"but the lake has landed it up to {expected}: the stream and the lake disagree"
                )


def _unused_query_name(spark: SparkSession) -> str:
    """Returns our name for a query; a query that was left behind keeps it, and the next has 2."""
    used_names = {query.name for query in spark.streams.active}
    numbered_names = (f"{QUERY_NAME}-{n}" for n in itertools.count(2))
    names = itertools.chain([QUERY_NAME], numbered_names)
    return next(name for name in names if name not in used_names)


def kafka_stream(
    spark: SparkSession, settings: Settings, intake: Intake, starts: Mapping[Partition, int]
) -> DataFrame:
    """Returns the stream of all our topics, with a tick: without data a query runs no batch.

    It cuts micro-batches; their records are read by the tasks that land them.
    """
    records = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings.kafka))
        .option("subscribe", ",".join(settings.kafka.topics().values()))
        .option("startingOffsets", json.dumps(offsets_json(starts)))
        .option("maxOffsetsPerTrigger", intake.epoch_offsets)
        .option("failOnDataLoss", "true")
        .load()
    )

    tick = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    return records.select("topic").unionByName(tick.selectExpr("cast(NULL AS string) AS topic"))


def batch_end_offsets(checkpoint: Path, batch_id: int) -> dict[Partition, int]:
    """Returns a micro-batch's end offsets, from the stream's offset log, written before it runs."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()

    for line in lines[2:]:
        value: Any = json.loads(line) if line.startswith("{") else None
        if value and all(isinstance(partitions, dict) for partitions in value.values()):
            return {
                (topic, int(partition)): int(offset)
                for topic, partitions in value.items()
                for partition, offset in partitions.items()
            }

    raise StartError(f"batch {batch_id} has no Kafka offsets in {checkpoint}")
