"""One epoch: gather, plan, decide, apply, ask, commit. The only writer of the lake.

1. Gather: exact Kafka ranges; tasks of Spark decode the records and write those with bodies into
   files that no commit names yet (`land`). The epoch before may still be at 3 to 6.
2. Plan: T, Kafka's end offsets and hence C(q), in the `planned` row. From here on the epoch can be
   run again and gives the same rows.
3. Decide: `checker`, narrow columns only.
4. Apply: commit half and schedule; op, admin, outcomes, conflicts, deliveries; topic tables.
5. Ask: due checks, one row an attempt.
6. Commit: what the epoch changed in the state, now and then with a snapshot of it; then the
   `committed` row.

What happens when a step fails: the epoch stays planned, in-memory state is thrown away, and the
next start runs the epoch again from step 3; tables that hold it are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from checker.decide import decide
from checker.frames import OUTCOMES, RULE_VERSION, Decision, Instants, State
from checker.timing import record_attempts
from pipelines.apply import Applier
from pipelines.ask import Asks, ask_once
from pipelines.batch import Batch
from pipelines.commit import decided_counts, landed_counts, state_rows
from pipelines.deliver import Deliverer
from pipelines.epoch_settings import (
    EpochSettings,
    is_snapshot_due,
    plan_limits,
    plan_parameters,
)
from pipelines.errors import StartError
from pipelines.kafka_log import KafkaLog
from pipelines.kafka_topics import KafkaTopics, Place
from pipelines.land import land, read_again
from pipelines.lookups import inputs_of
from pipelines.pings import OwnPings
from pipelines.plan import Planner, queues_of
from pipelines.restore import restore, topics_before
from storage import schemas
from storage.epoch_log import EpochLog
from storage.epochs import Plan, Progress, read_progress
from storage.kafka_rows import ADMIN, HALF, KINDS
from storage.lake import Lake
from storage.land import Landing
from storage.whole import require_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITERS = 4


class Steps:
    """Measure how long each step of an epoch takes, in ms."""

    def __init__(self) -> None:
        self.step_ms: dict[str, int] = {}
        self._since = time.monotonic()

    def done(self, step: str) -> None:
        now = time.monotonic()
        self.step_ms[step] = round((now - self._since) * 1000)
        self._since = now


@dataclass(frozen=True)
class Gathered:
    """A micro-batch, landed before its T is fixed.

    `spans`: the offsets that it lands, by place; `batch` is None where they hold no record of
    interest. Its files are written and nobody's yet.
    """

    spans: Mapping[Place, range]
    batch: Batch | None
    steps: Steps


class Epochs:
    """Run epochs on one lake; holds the state between them.

    Errors: LostInputError, OwnerError, StartError; anything else leaves the lake with a planned
    epoch: call `recover` before the next `run`.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        kafka: KafkaTopics,
        asker: Asks,
        settings: EpochSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._asker = asker
        self._settings = settings
        self._kafka = KafkaLog(kafka)
        self._planner = Planner(self._kafka, settings, now_ms)
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-writer")
        self._deliverer = Deliverer(spark)
        self._log = EpochLog(lake)
        self._state = State()
        self._last: Plan | None = None
        self._newest: Plan | None = None  # is the last, or planned and not committed yet
        self.own_pings = OwnPings()
        self.epochs_run = 0

    @property
    def state(self) -> State:
        """Give the state after the last committed epoch."""
        return self._state

    @property
    def last(self) -> Plan | None:
        """Give the last committed plan."""
        return self._last

    @property
    def newest(self) -> Plan | None:
        """Give the newest plan: the last committed one, or the one that is being finished."""
        return self._newest

    def take_up(self) -> Progress:
        """Read the state from the lake, if that is whole. Output: where its epochs stand.

        Errors: BrokenLakeError when something is not there that was committed.
        """
        self._lake.forget()
        progress = read_progress(self._lake)
        require_whole(self._lake, progress, is_alone=True)
        self._state = restore(self._lake, progress)
        self._log.take_up(progress)
        self._last = self._newest = progress.last
        self._planner.take_up(progress)
        return progress

    def recover(self, progress: Progress) -> Plan | None:
        """Finish a planned epoch. Output: its plan, if there was one."""
        if progress.unfinished is None:
            return None
        plan = self._check_rule_version(progress.unfinished)
        self._finish(plan, self._batch_again(plan), Steps())
        return plan

    def _check_rule_version(self, plan: Plan) -> Plan:
        """Let a plan of other rules pass only while nothing was written by those rules."""
        if plan.rule_version == RULE_VERSION:
            return plan
        topics = topics_before(self._lake, plan.epoch + 1)["table_id"].to_pylist()
        tables = [t for t in schemas.TABLES if t not in ("lake", "epochs")]
        tables += [f"topics/{table_id}" for table_id in topics]
        if any(self._lake.holds(table, plan.epoch) for table in tables):
            raise StartError(
                f"epoch {plan.epoch} was begun with rule version {plan.rule_version} and this "
                f"txlake has {RULE_VERSION}: finish it with a txlake of rule version "
                f"{plan.rule_version} first"
            )
        return replace(plan, rule_version=RULE_VERSION)

    def _batch_again(self, plan: Plan) -> Batch:
        """Read a plan's records again: from tables that hold the epoch, else from Kafka."""
        held = [kind for kind in KINDS if self._lake.holds(kind, plan.epoch)]
        landing = Landing(self._lake.place, plan.epoch, plan_limits(plan))
        count = sum(r.to_offset - r.from_offset for r in plan.ranges)
        tasks = self._settings.sizes.landing_tasks(count)
        options = self._settings.kafka_options
        batch = read_again(self._spark, self._lake, plan, held, landing, tasks, options)
        self._settings.sizes.saw(batch.landed_messages, batch.landed_bytes)
        return batch

    def start_offsets(self) -> dict[Place, int]:
        """Give where landing goes on: the committed ends, else Kafka's first offsets.

        Errors: LostInputError when Kafka no longer has what comes next.
        """
        return self._kafka.start_offsets({} if self._last is None else self._last.landed())

    def check_identity(self, plan: Plan | None) -> None:
        """Compare the Kafka cluster and topics with those of a plan. Errors: LostInputError."""
        self._kafka.check(plan)

    def look_ahead(self) -> None:
        """Ask where Kafka ends before the next micro-batch is cut, if any half waits.

        An epoch that is not committed yet may bring some. Errors: KafkaAwayError.
        """
        may_ask = self._newest is not self._last or self._state.halves.num_rows > 0
        if self._newest is not None and may_ask:
            self._planner.look_ahead(self._newest.landed())

    def run(self, records: DataFrame, to_offsets: Mapping[Place, int]) -> Plan | None:
        """Run one epoch over a micro-batch of Spark's Kafka source.

        Input: the micro-batch begins where the last epoch ended; where it ends, by place.
        Output: its plan; None when there was nothing to do.
        """
        gathered = self.gather(records, to_offsets)
        plan = self.plan(gathered)
        if plan is not None:
            self.finish(plan, gathered)
        return plan

    def gather(self, records: DataFrame, to_offsets: Mapping[Place, int]) -> Gathered:
        """Land a micro-batch. The epoch before is planned; it may still be being finished."""
        steps, newest = Steps(), self._newest
        self._kafka.check(newest)
        spans = self._kafka.spans(to_offsets, {} if newest is None else newest.landed())
        batch = None
        if self._has_news(spans):
            epoch = 1 if newest is None else newest.epoch + 1
            landing = Landing(self._lake.place, epoch, self._settings.limits)
            tasks = self._settings.sizes.landing_tasks(sum(map(len, spans.values())))
            batch = land(records, landing, tasks)
            self._settings.sizes.saw(batch.landed_messages, batch.landed_bytes)
        steps.done("gather")
        return Gathered(spans, batch, steps)

    def _has_news(self, spans: Mapping[Place, range]) -> bool:
        """Say whether there is a record to land, our own PINGs aside."""
        admin = self._settings.limits.topics[ADMIN]
        return any(
            not self.own_pings.are(span) if topic == admin else len(span) > 0
            for (topic, _), span in spans.items()
        )

    def plan(self, gathered: Gathered) -> Plan | None:
        """Fix T and write the `planned` row. The epoch before is committed.

        Output: None when there is nothing to do: no record came, and nothing is due.
        """
        gathered.steps.done("wait")
        if gathered.batch is not None:
            self._kafka.check(self._last)  # landing and waiting may have taken a while
        plan = self._planner.plan(gathered.spans, self._last, _offsets(self._state.next_offsets))
        if gathered.batch is None and not self._planner.is_due(plan, self._state):
            return None
        self._log.plan(plan)
        self._newest = plan
        self._planner.used()
        gathered.steps.done("plan")
        return plan

    def finish(self, plan: Plan, gathered: Gathered) -> None:
        """Run a planned epoch to its commit; another thread may gather the next meanwhile."""
        batch, admin = gathered.batch or Batch(), self._settings.limits.topics[ADMIN]
        landed = set(batch.rows(ADMIN)["queue_offset"].to_pylist())
        pings = self.own_pings.rows(plan.ranges, admin, self._settings.owner)
        batch.add(ADMIN, [ping for ping in pings if ping["queue_offset"] not in landed])
        self._finish(plan, batch, gathered.steps)

    def _finish(self, plan: Plan, batch: Batch, steps: Steps) -> None:
        """Run a planned epoch to its commit."""
        applier, counts = self._applier(plan, batch), landed_counts(batch)
        futures = applier.land(self._pool)
        try:
            decision = self._decide(plan, batch)
            batch.drop_written()
            pa.default_memory_pool().release_unused()
            steps.done("decide")
            applier.create_topics(decision)
            landed = list(futures)
            futures += applier.deliver(decision, landed, self._pool)
            counts |= decided_counts(decision) | applier.record(decision)
            decision = replace(decision, outcomes=OUTCOMES.empty_table())  # they are recorded
            _raise_first(landed)
            attempts = ask_once(self._lake, self._asker, plan, decision.due)
            counts["checks"] = attempts.num_rows
            decision = record_attempts(decision, attempts, plan.epoch_at)
            steps.done("ask")
            futures += self._record_state(applier, decision, counts)
        finally:
            wait(futures)
        _raise_first(futures)
        steps.done("apply")
        self._commit(plan, decision.state, counts, steps, applier)

    def _applier(self, plan: Plan, batch: Batch) -> Applier:
        sizes = self._settings.sizes
        return Applier(self._lake, plan, batch, self._deliverer, sizes, self._due_since())

    def _due_since(self) -> int | None:
        """Give the due time of the first message that waits."""
        earliest: int | None = pc.min(self._state.delayed["deliver_at"]).as_py()
        return earliest

    def _decide(self, plan: Plan, batch: Batch) -> Decision:
        limits = plan_limits(plan)
        inputs = inputs_of(batch, self._lake, self._state, plan, limits)
        instants = Instants(plan.epoch_at, queues_of(plan, limits.topics[HALF]))
        return decide(self._state, inputs, instants, plan_parameters(plan))

    def _record_state(
        self, applier: Applier, decision: Decision, counts: dict[str, int]
    ) -> list[Future[None]]:
        """Start writing what the epoch changed in the state, and now and then all of it."""
        is_snapshot = self._is_snapshot_due(applier.plan)
        tables = state_rows(applier.plan, decision, is_snapshot)
        counts |= {table: rows.num_rows for table, rows in tables.items()}
        if is_snapshot:
            counts["snapshot"] = 1
        return [
            self._pool.submit(applier.append, table, rows)
            for table, rows in tables.items()
            if rows.num_rows
        ]

    def _is_snapshot_due(self, plan: Plan) -> bool:
        return is_snapshot_due(plan)

    def _commit(
        self, plan: Plan, after: State, counts: Mapping[str, int], steps: Steps, applier: Applier
    ) -> None:
        """Write the commit point; only now the state in memory changes."""
        work = applier.work
        self._log.commit(plan, _offsets(after.next_offsets), counts, steps.step_ms, work)
        self._state, self._last, self._newest = after, plan, plan
        self._planner.committed(plan)
        self.epochs_run += 1

    def close(self) -> None:
        """Wait for what is being written and give the threads back."""
        self._pool.shutdown(wait=True)


def _raise_first(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()


def _offsets(frame: pa.Table) -> dict[tuple[str, int], int]:
    return {(r["topic"], r["queue_id"]): r["next_offset"] for r in frame.to_pylist()}
