"""One epoch: land, plan, decide, write, check, commit. The only writer of the lake.

1. Land: exact Kafka ranges; tasks of Spark decode the records and write those with bodies into
   files that no commit names yet (`land`). The epoch before can still be at 3 to 6.
2. Plan: `epoch_at`, Kafka's end offsets and hence `known_at`, in the `planned` row. From here on
   the epoch can be run again and gives the same rows.
3. Decide: `checker`, narrow columns only.
4. Write: commit half and schedule; op, admin, outcomes, conflicts, deliveries; topic tables.
5. Check: send due checks, one row an attempt. Many messages go to their topic tables after it.
6. Commit: the changes of the state, in some epochs with a snapshot of it; then the `committed` row.

If a step fails, the epoch stays planned and the state in memory is thrown away. The next start runs
the epoch again from step 3; tables that hold it are skipped.

`EpochRunner` has steps 1 and 2, and `EpochCommitter` has steps 3 to 6: a replay uses them, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.decide import decide
from checker.frames import OUTCOMES, Decision, State
from checker.rules.timing import record_attempts
from pipelines.epoch.batch import Batch
from pipelines.epoch.checks import CheckSender, send_checks_once
from pipelines.epoch.counts import advanced_offsets, decided_counts, landed_counts, state_size
from pipelines.epoch.delivery import MessageDelivery
from pipelines.epoch.gaps import unexplained
from pipelines.epoch.land import Lander
from pipelines.epoch.listener import EpochListener
from pipelines.epoch.lookups import build_inputs
from pipelines.epoch.memory import release_memory
from pipelines.epoch.own_pings import OwnPings
from pipelines.epoch.parameters import (
    EpochSettings,
    plan_limits,
    plan_parameters,
    planned_snapshot,
)
from pipelines.epoch.plan import Planner, to_instants
from pipelines.epoch.recorded_state import restore, state_rows
from pipelines.epoch.recover import adopt_rule_version, next_offsets, reload_batch
from pipelines.epoch.signatures import verify_signatures
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.epoch.write import EpochWriter
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.source_log import SourceLog
from storage.files.row_groups import Bounds
from storage.lake.aging import advance_floor
from storage.lake.epoch_log import write_commit, write_plan
from storage.lake.epochs import Plan
from storage.lake.floor import Floor
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.loss import planned_losses
from storage.lake.progress import NO_PROGRESS, Progress, read_progress
from storage.lake.snapshots import Snapshot
from storage.schemas import SNAPSHOT
from storage.tasks.kafka_reader import close_consumer
from storage.tasks.land import Landing
from storage.wire.record_kinds import ADMIN, HALF

log = logging.getLogger("txlake.kafka")
# How long an end waits for the warm-up of a start: it is in Arrow's code, which would abort a
# process that ends meanwhile. A JVM that is suspended does not answer.
_WARM_UP_S = 10.0
_WRITERS: Final = 4


class StepTimer:
    """A stopwatch for the steps of an epoch, in ms."""

    def __init__(self) -> None:
        self.step_ms: dict[str, int] = {}
        self._since = time.monotonic()

    def lap(self, step: str) -> None:
        """Records the time since the lap before as a step's."""
        now = time.monotonic()
        self.step_ms[step] = round((now - self._since) * 1000)
        self._since = now


@dataclass(frozen=True)
class LandedBatch:
    """A micro-batch after step 1, before its `epoch_at` is fixed.

    `offset_ranges`: the offsets that it lands, by partition. `batch`: None if they hold no record
    but our own PINGs. Its files are written, and no commit names them yet.
    """

    offset_ranges: Mapping[Partition, range]
    batch: Batch | None
    timer: StepTimer


@dataclass(frozen=True)
class PlannedEpoch:
    """An epoch after step 2: its plan and its records.

    `is_resumed`: whether an earlier run has planned it, and perhaps written some of its rows.
    """

    plan: Plan
    batch: Batch
    timer: StepTimer
    is_resumed: bool = False


class EpochRunner:
    """The runner of epochs on one lake; it keeps the state between them.

    `lander`: reads Kafka's records and lands them.

    Errors: LostInputError, OwnerError, StartError. Any other leaves the lake with a planned epoch:
    call `recover` before the next `run`.
    """

    def __init__(
        self,
        lander: Lander,
        lake: Lake,
        kafka: KafkaAdmin,
        asker: CheckSender,
        settings: EpochSettings,
        now_ms: Callable[[], int],
        listener: EpochListener | None = None,
    ) -> None:
        self._lander = lander
        self._lake = lake
        self._settings = settings
        self._listener = listener or EpochListener()

        self._kafka = SourceLog(kafka)
        self._planner = Planner(self._kafka, settings, now_ms)
        self._committer = EpochCommitter(
            lake, asker, settings.sizes, MessageDelivery(lander.spark), self._listener
        )

        self.location = lake.location
        self.own_pings = OwnPings()
        self._warm_up: Thread | None = None

    @property
    def state(self) -> State:
        """Returns the state after the last committed epoch."""
        return self._committer.state

    @property
    def progress(self) -> Progress:
        """Returns where the epochs stand."""
        return self._committer.progress

    @property
    def last(self) -> Plan | None:
        """Returns the last committed plan."""
        return self.progress.last

    @property
    def newest(self) -> Plan | None:
        """Returns the plan that is being finished, else the last committed one."""
        return self.progress.newest

    def resume(self) -> Progress:
        """Reads the state from the lake, if the lake is whole. Output: where its epochs stand.

        Errors: BrokenLakeError if something that was committed is missing.
        """
        self._lake.reset()
        progress = read_progress(self._lake)
        require_intact(self._lake, progress, is_exclusive=True)

        self._committer.resume_from(progress)
        self._planner.drop_prefetched()
        return progress

    def recover(self) -> Plan | None:
        """Finishes a planned epoch. Output: its plan, if there was one.

        Errors: LostInputError if Kafka no longer has its records, and they are not landed.
        """
        unfinished = self.progress.unfinished
        if unfinished is None:
            return None

        plan = adopt_rule_version(self._lake, unfinished)
        self._kafka.start_offsets(next_offsets(self._lake, plan), planned_losses(plan))
        batch = reload_batch(self._lander, self._lake, plan, self._settings, self._kafka.present)
        self._committer.finish(PlannedEpoch(plan, batch, StepTimer(), is_resumed=True))
        return plan

    def warm_up(self) -> None:
        """Prepares Spark for a landing, in a thread beside the other steps of a start."""
        landing = Landing(self._lake.location, 0, self._settings.limits)
        tasks = self._settings.sizes.spark_tasks(0)
        self._warm_up = Thread(
            target=self._lander.warm_up, args=(landing, tasks), name="txlake-warm-up", daemon=True
        )
        self._warm_up.start()

    def start_offsets(self) -> dict[Partition, int]:
        """Returns the next offset to land of each partition: the committed, else Kafka's first.

        Errors: LostInputError if Kafka no longer has the records that come next.
        """
        return self._kafka.start_offsets(self.progress.landed())

    def begins(self, partition: Partition, landed: int) -> int:
        """Returns the next offset to land of a partition, behind an accepted loss."""
        return self._kafka.begins(partition, landed)

    def check_identity(self, plan: Plan | None) -> None:
        """Compares the Kafka cluster and topics with those of a plan. Errors: LostInputError."""
        self._kafka.check(plan)

    def prefetch_end_offsets(self) -> None:
        """Asks Kafka for its end offsets before the next micro-batch is cut, if any half waits.

        A running epoch can bring a half, so it counts as one. Errors: KafkaAwayError.
        """
        progress = self.progress
        can_have_halves = progress.unfinished is not None or self.state.halves.num_rows > 0
        if progress.newest is not None and can_have_halves:
            self._planner.prefetch_end_offsets(progress.newest.landed())

    def run(self, to_offsets: Mapping[Partition, int]) -> Plan | None:
        """Runs one epoch over a micro-batch, which begins where the last epoch ended.

        Input: its end, by partition. Output: the epoch's plan; None if there was nothing to do.
        """
        landed = self.land_batch(to_offsets)
        epoch = self.plan(landed)
        if epoch is None:
            return None

        self.finish(epoch)
        return epoch.plan

    def land_batch(self, to_offsets: Mapping[Partition, int]) -> LandedBatch:
        """Step 1, land. The epoch before is planned; it can still be running."""
        timer = StepTimer()
        newest = self.newest
        offset_ranges = self._kafka.spans(to_offsets, {} if newest is None else newest.landed())

        batch = None
        if self._has_records(offset_ranges):
            epoch = 1 if newest is None else newest.epoch + 1
            batch = self._land_records(epoch, self._kafka.present(offset_ranges))

        timer.lap("gather")
        return LandedBatch(offset_ranges, batch, timer)

    def _has_records(self, offset_ranges: Mapping[Partition, range]) -> bool:
        """Returns whether there is a record to land, a few of our own PINGs aside."""
        admin = self._settings.limits.topics[ADMIN]
        return any(
            not self.own_pings.can_wait(offsets) if topic == admin else len(offsets) > 0
            for (topic, _), offsets in offset_ranges.items()
        )

    def _land_records(self, epoch: int, present: Mapping[Partition, range]) -> Batch:
        """Lands the records of a micro-batch, verifies signatures, logs gaps.

        Input: `present`: the offsets that are not accepted as lost.
        """
        settings = self._settings
        landing = Landing(
            self._lake.location, epoch, settings.limits, settings.intake.driver_bytes_max
        )
        tasks = settings.sizes.landing_tasks(sum(map(len, present.values())))
        batch = self._lander.land(present, landing, settings.source, tasks)

        for gap in unexplained(batch, present, settings.limits.topics):
            log.error("%s", gap)

        verify_signatures(batch, settings.security)
        settings.sizes.observe(batch.landed_messages, batch.landed_bytes)
        return batch

    def plan(self, landed: LandedBatch) -> PlannedEpoch | None:
        """Step 2, plan: fixes `epoch_at`, writes the `planned` row. The epoch before is committed.

        Output: None if there is nothing to do: no record came, and nothing is due.
        """
        landed.timer.lap("wait")
        self._kafka.check(self.last)  # records of another Kafka are in no commit yet

        plan = self._planner.plan(landed.offset_ranges, self.progress)
        if landed.batch is None and not self._planner.is_due(plan, self.state):
            self._listener.on_idle(plan)
            return None

        # Not sooner: a look for the floor reads the lake, and an idle job looks again and again.
        floor, snapshot = self._floor_and_snapshot_at(plan.epoch, plan.epoch_at)
        plan = self._planner.with_parameters(plan, floor, snapshot)

        self._committer.plan(plan)
        self._planner.drop_prefetched()
        self._kafka.accepted = {}  # the plan has them
        landed.timer.lap("plan")
        return PlannedEpoch(plan, landed.batch or Batch(), landed.timer)

    def _floor_and_snapshot_at(self, epoch: int, epoch_at: int) -> tuple[Floor, Snapshot]:
        """Returns the floor of an epoch and the newest snapshot up to it.

        Both change only in every `snapshot_epochs`-th epoch.
        """
        last = self.last
        settings = self._settings

        floor = Floor()
        snapshot = Snapshot()
        if last is not None:
            floor = last.floor
            snapshot = last.snapshot
            if snapshot.epoch != last.epoch:
                changes = snapshot.changes + self.progress.changes
                snapshot = replace(snapshot, changes=changes)

        if epoch % settings.snapshot_epochs:
            return floor, snapshot

        if last is not None:
            floor = advance_floor(self._lake, last, epoch_at - settings.retention_ms)

        rows = state_size(self.state)["state_rows"]
        if snapshot.is_due(epoch_at, rows, settings.retention_ms):
            snapshot = Snapshot(epoch, epoch_at)
        return floor, snapshot

    def finish(self, epoch: PlannedEpoch) -> None:
        """Steps 3 to 6 of a planned epoch; another thread can land the next one meanwhile."""
        batch = epoch.batch
        admin_topic = self._settings.limits.topics[ADMIN]
        landed_offsets = set(batch.rows(ADMIN)["queue_offset"].to_pylist())
        pings = self.own_pings.rows(epoch.plan.ranges, admin_topic, self._settings.owner)
        batch.add(ADMIN, [ping for ping in pings if ping["queue_offset"] not in landed_offsets])

        self._committer.finish(epoch)

    def close(self) -> None:
        """Waits for running writes, ends the threads, closes the driver's reader of Kafka."""
        self._committer.close()
        close_consumer()
        if self._warm_up is not None:
            self._warm_up.join(_WARM_UP_S)


@dataclass
class _RunningEpoch:
    """An epoch between its plan and its commit: steps 3 to 6 fill it.

    `counts`: for the `committed` row. `delivers_last`: many messages are delivered, after all else.
    `writes`: all writes that have begun; `landing` and `decided` are the ones of records, and of
    decided rows.
    """

    plan: Plan
    batch: Batch
    timer: StepTimer
    writer: EpochWriter
    counts: dict[str, int]
    record_count: int
    landing: list[Future[None]]
    writes: list[Future[Any]]
    is_resumed: bool
    decided: list[Future[None]] = field(default_factory=list)
    delivers_last: bool = False


class EpochCommitter:
    """The runner of planned epochs on one lake; it keeps the state between them, and the writers.

    `progress`: where the epochs stand; `state`: the state after the last committed epoch.
    """

    def __init__(
        self,
        lake: Lake,
        asker: CheckSender,
        sizes: TaskSizing,
        deliverer: MessageDelivery,
        listener: EpochListener | None = None,
    ) -> None:
        self.state = State()
        self.progress = NO_PROGRESS

        self._lake = lake
        self._asker = asker
        self._sizes = sizes
        self._deliverer = deliverer
        self._listener = listener or EpochListener()
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-writer")

    def resume_from(self, progress: Progress, lake: Lake | None = None) -> None:
        """Reads the state after the last committed epoch. Input: the lake, if it is another one."""
        source = lake or self._lake
        self.state = restore(source, progress)
        self.progress = progress

        self._lake.row_counts.clear()
        self._listener.on_start(source, progress.last, self.state)

    def plan(self, plan: Plan) -> None:
        """Step 2, plan: writes the `planned` row. Errors: OwnerError."""
        self.progress = write_plan(self._lake, self.progress, plan)

    def finish(self, epoch: PlannedEpoch) -> None:
        """Steps 3 to 6 of a planned epoch."""
        running = self._begin(epoch)
        try:
            decision = self._decide(running)
            decision = self._write(running, decision)
            decision, attempts = self._check(running, decision)
            self._write_state(running, decision)
            if running.delivers_last:
                self._deliver_many(running, decision)
        finally:
            writes = _wait_all(running.writes)

        _raise_first(writes)
        running.timer.lap("apply")
        self._commit(running, decision, attempts)

    def _begin(self, epoch: PlannedEpoch) -> _RunningEpoch:
        """Starts the writes that need no decision: half, schedule, operations."""
        writer = self._applier(epoch.plan, epoch.batch)
        counts = landed_counts(epoch.batch)
        record_count = epoch.batch.records

        landing = [*writer.land(self._pool), *writer.write_operations(self._pool)]
        return _RunningEpoch(
            plan=epoch.plan,
            batch=epoch.batch,
            timer=epoch.timer,
            writer=writer,
            counts=counts,
            record_count=record_count,
            landing=landing,
            writes=[*landing],
            is_resumed=epoch.is_resumed,
        )

    def _applier(self, plan: Plan, batch: Batch) -> EpochWriter:
        return EpochWriter(self._lake, plan, batch, self._deliverer, self._sizes, self._due(plan))

    def _due(self, plan: Plan) -> Bounds | None:
        """Returns the range of `deliver_at` that is due in an epoch; None if no message waits."""
        earliest = pc.min(self.state.delayed["deliver_at"]).as_py()
        return None if earliest is None else (earliest, plan.epoch_at)

    def _decide(self, running: _RunningEpoch) -> Decision:
        """Step 3, decide: returns the decision; then releases the memory of landed messages."""
        decision = self._decision(running.plan, running.batch)

        running.batch.drop_written()
        release_memory(running.record_count)
        running.timer.lap("decide")
        return decision

    def _decision(self, plan: Plan, batch: Batch) -> Decision:
        limits = plan_limits(plan)
        inputs = build_inputs(batch, self._lake, self.state, plan, limits)
        instants = to_instants(plan, self.progress.last, limits.topics[HALF])

        decision = decide(
            self.state,
            inputs,
            instants,
            plan_parameters(plan),
            after_step=lambda: release_memory(batch.records),
        )
        self._listener.on_decided(plan, self.state, inputs, decision)
        return decision

    def _write(self, running: _RunningEpoch, decision: Decision) -> Decision:
        """Step 4, write: starts the writes of decided rows, and of messages if they are few.

        A run that finishes the epoch decides of the records that it finds written: nothing that
        depends on them is written before. Output: the decision without the outcomes, which a write
        has.
        """
        writer = running.writer
        _raise_first(running.landing)
        writer.create_topics(decision)

        running.counts |= decided_counts(decision)
        running.delivers_last = self._sizes.delivery_tasks(decision.placements.num_rows) > 0
        if not running.delivers_last:  # few are delivered beside all that is recorded and checked
            running.writes.append(
                self._pool.submit(writer.deliver, decision, running.landing, self._pool)
            )

        recorded_counts, running.decided = writer.write_decided_rows(decision, self._pool)
        running.counts |= recorded_counts
        running.writes += running.decided
        return replace(decision, outcomes=OUTCOMES.empty_table())

    def _check(self, running: _RunningEpoch, decision: Decision) -> tuple[Decision, pa.Table]:
        """Step 5, check: sends due checks. The halves are landed.

        Output: the decision with the attempts in its state; ATTEMPTS.
        """
        attempts = send_checks_once(
            self._lake, self._asker, running.plan, decision.due, is_resumed=running.is_resumed
        )
        running.counts["checks"] = attempts.num_rows

        decision = record_attempts(decision, attempts, running.plan.epoch_at)
        running.timer.lap("ask")
        return decision, attempts

    def _write_state(self, running: _RunningEpoch, decision: Decision) -> None:
        """Step 6, commit: starts the writes of the state's changes, or of a snapshot of it."""
        snapshot = self._snapshot(running.plan)
        tables = state_rows(running.plan, decision, is_snapshot=snapshot == 1)

        running.counts |= {table: rows.num_rows for table, rows in tables.items()}
        if snapshot is not None:
            running.counts[SNAPSHOT] = snapshot

        running.writes += [
            self._pool.submit(running.writer.append, table, rows)
            for table, rows in tables.items()
            if rows.num_rows
        ]

    def _snapshot(self, plan: Plan) -> int | None:
        return planned_snapshot(plan)

    def _deliver_many(self, running: _RunningEpoch, decision: Decision) -> None:
        """The end of step 4 for many messages: their tasks need the memory of the steps before."""
        wait(running.decided)
        release_memory(running.record_count)
        running.writes += running.writer.deliver(decision, running.landing, self._pool)

    def _commit(self, running: _RunningEpoch, decision: Decision, attempts: pa.Table) -> None:
        """Step 6, commit: writes the `committed` row; then the state in memory changes."""
        plan = running.plan
        counts = running.counts
        step_ms = running.timer.step_ms
        work = {**running.writer.work, **state_size(decision.state)}
        offsets = advanced_offsets(decision.placements)

        progress = write_commit(self._lake, self.progress, plan, offsets, counts, step_ms, work)
        self.state = decision.state
        self.progress = progress
        self._listener.on_committed(plan, self.state, attempts, counts, step_ms)

    def close(self) -> None:
        """Waits for running writes and ends the threads."""
        self._pool.shutdown(wait=True)


def _wait_all(futures: list[Future[Any]]) -> list[Future[Any]]:
    """Waits for writes, and for those that they begin. Output: all of them."""
    known = list(futures)
    for future in known:  # it grows on the way
        wait([future])
        if future.exception() is None:
            known += future.result() or ()
    return known


def _raise_first(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.result()
