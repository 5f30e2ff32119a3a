"""One epoch: gather, plan, decide, apply, ask, commit. The only writer of the lake.

1. Gather: exact Kafka ranges; the records, decoded once. The epoch before may still be at 3 to 6.
2. Plan: T, Kafka's end offsets and hence C(q), in the `planned` row. From here on the epoch can be
   run again and gives the same rows.
3. Decide: `checker`, narrow columns only.
4. Apply: land half, op, schedule, admin; outcomes, conflicts, delayed, deliveries; topic tables.
5. Ask: due checks, one row an attempt.
6. Commit: what the epoch changed in the state, now and then with a snapshot of it; then the
   `committed` row.

What happens when a step fails: the epoch stays planned, in-memory state is thrown away, and the
next start runs the epoch again from step 3; tables that hold it are skipped.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.decide import decide
from checker.frames import QUEUES, RULE_VERSION, Decision, Instants, Parameters, State
from checker.known import Horizon, known_at, still_ahead
from checker.timing import is_something_due, record_attempts
from pipelines.apply import Applier
from pipelines.ask import Asks
from pipelines.batch import Batch
from pipelines.deliver import Deliverer
from pipelines.errors import LostInputError, StartError
from pipelines.kafka_options import spark_options
from pipelines.kafka_topics import KafkaTopics, Place
from pipelines.land import land, read_again
from pipelines.lookups import inputs_of
from pipelines.restore import FRAMES, change_rows, restore, topics_before
from pipelines.settings import Settings
from pipelines.sizes import Sizes
from storage import schemas
from storage.epoch_log import EpochLog
from storage.epochs import Plan, Progress, Range, read_progress
from storage.kafka_rows import ADMIN, HALF, KINDS, OP, SCHEDULE, WireLimits
from storage.lake import Lake
from storage.land import Landing
from storage.rows import instant, to_rows
from storage.whole import require_whole
from txlake.protocol import PING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITERS = 4
LANDED_TABLES = KINDS


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
    """A micro-batch, read before its T is fixed.

    `spans`: the offsets that it lands, by place; `batch` is None where they hold no record of
    interest. Its files are written and nobody's yet.
    """

    spans: Mapping[Place, range]
    batch: Batch | None
    steps: Steps


@dataclass(frozen=True)
class EpochSettings:
    """What an epoch needs of the settings."""

    parameters: Parameters
    limits: WireLimits
    snapshot_epochs: int
    kafka_options: Mapping[str, str]
    owner: str
    sizes: Sizes

    @classmethod
    def of(cls, settings: Settings, owner: str, spark: SparkSession) -> EpochSettings:
        """Take them from a job's settings."""
        parallelism = spark.sparkContext.defaultParallelism
        return cls(
            parameters=settings.parameters(),
            limits=settings.wire_limits(),
            snapshot_epochs=settings.lake.pending_snapshot_epochs,
            kafka_options=spark_options(settings.kafka),
            owner=owner,
            sizes=Sizes(parallelism, settings.stream.deliveries),
        )


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
        self._kafka = kafka
        self._asker = asker
        self._settings = settings
        self._now_ms = now_ms
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-writer")
        self._deliverer = Deliverer(spark)
        self._state = State()
        self._last: Plan | None = None
        self._newest: Plan | None = None  # is the last, or planned and not committed yet
        self._log = EpochLog(lake)
        self._horizons: tuple[Horizon, ...] = ()
        self._asked: Horizon | None = None
        self._cluster_id = ""
        self._topic_ids: Mapping[str, str] = {}
        self.own_pings: dict[int, int] = {}  # admin offset -> when the broker stored it, ms
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
        self._take_up(progress)
        return progress

    def recover(self, progress: Progress) -> Plan | None:
        """Finish a planned epoch. Output: its plan, if there was one."""
        plan = progress.unfinished
        if plan is None:
            return None
        plan = self._check_rule_version(plan)
        self._finish(plan, self._batch_again(plan), Steps())
        return plan

    def _take_up(self, progress: Progress) -> None:
        self._state = restore(self._lake, progress)
        self._log.take_up(progress)
        self._last = self._newest = progress.last
        landed = {} if progress.last is None else progress.last.landed()
        self._horizons = still_ahead(itertools.chain(*map(_horizons, progress.recent)), landed)
        self._asked = None

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
        held = [kind for kind in LANDED_TABLES if self._lake.holds(kind, plan.epoch)]
        landing = Landing(self._lake.place, plan.epoch, plan_limits(plan))
        count = sum(r.to_offset - r.from_offset for r in plan.ranges)
        tasks = self._settings.sizes.landing_tasks(count)
        options = self._settings.kafka_options
        return read_again(self._spark, self._lake, plan, held, landing, tasks, options)

    def start_offsets(self) -> dict[Place, int]:
        """Give where landing goes on: the committed ends, else Kafka's first offsets.

        Errors: LostInputError when Kafka no longer has what comes next.
        """
        places = self._kafka.places()
        first, ends = self._kafka.first_offsets(places), self._kafka.end_offsets(places)
        landed = {} if self._last is None else self._last.landed()
        for place, offset in landed.items():
            topic, partition = place
            if place not in first:
                raise LostInputError(
                    f"partition {partition} of {topic} is gone; the lake has landed it up to "
                    f"offset {offset}: a topic with fewer partitions is another topic"
                )
            if first[place] > offset:
                raise LostInputError(
                    f"Kafka no longer has offsets {offset} to {first[place] - 1} of {topic} "
                    f"partition {partition}: they were deleted before they were landed and are lost"
                )
            if ends[place] < offset:
                raise LostInputError(
                    f"{topic} partition {partition} ends at {ends[place]}, but the lake has landed "
                    f"it up to {offset}: Kafka lost records, or this is another log"
                )
        return {place: landed.get(place, offset) for place, offset in first.items()}

    def check_identity(self, plan: Plan | None) -> None:
        """Compare the Kafka cluster and topics with those of a plan of this lake.

        Errors: LostInputError naming both ids.
        """
        self._cluster_id, self._topic_ids = self._kafka.cluster_id(), self._kafka.topic_ids()
        if plan is None:
            return
        if self._cluster_id != plan.cluster_id:
            raise LostInputError(
                f"this is Kafka cluster {self._cluster_id}; the lake was made from "
                f"{plan.cluster_id}: their offsets have nothing to do with each other"
            )
        for topic, topic_id in plan.topic_ids.items():
            now = self._topic_ids.get(topic)
            if now != topic_id:
                what = "was deleted" if now is None else "was deleted and made again"
                raise LostInputError(
                    f"topic {topic} {what} (id {topic_id}, now {now}): what it held and was not "
                    "landed is lost; a lake belongs to one log"
                )

    def look_ahead(self) -> None:
        """Ask where Kafka ends before the next micro-batch is cut, which then lands all of it.

        So C(q) of the next epoch is this instant under load too, not T of the epoch before.
        Errors: KafkaAwayError.
        """
        if self._newest is None or not self._may_ask():
            return
        asked_at = self._now_ms()
        self._asked = Horizon(asked_at, self._kafka.end_offsets(self._newest.landed()))

    def _may_ask(self) -> bool:
        """Say whether any half waits; an epoch that is not committed yet may bring some."""
        return self._newest is not self._last or self._state.halves.num_rows > 0

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
        """Read a micro-batch. The epoch before is planned; it may still be being finished."""
        steps = Steps()
        self.check_identity(self._newest)
        landed = self._landed()
        first = self._kafka.first_offsets(p for p in to_offsets if p not in landed)
        spans = {
            place: range(landed.get(place, first.get(place, 0)), to)
            for place, to in sorted(to_offsets.items())
        }
        batch = None
        if self._has_news(spans):
            epoch = 1 if self._newest is None else self._newest.epoch + 1
            landing = Landing(self._lake.place, epoch, self._settings.limits)
            tasks = self._settings.sizes.landing_tasks(sum(map(len, spans.values())))
            batch = land(records, landing, tasks)
        steps.done("gather")
        return Gathered(spans, batch, steps)

    def plan(self, gathered: Gathered) -> Plan | None:
        """Fix T and write the `planned` row. The epoch before is committed.

        Output: None when there is nothing to do: no record came, and nothing is due.
        """
        spans, steps = gathered.spans, gathered.steps
        steps.done("wait")
        if gathered.batch is not None:
            self.check_identity(self._last)  # reading and waiting may have taken a while
        epoch_at = self._now_ms()
        ends = self._kafka.end_offsets(spans)
        asked = {} if self._asked is None else self._asked.end_offsets
        ranges = tuple(
            Range(*place, span.start, span.stop, ends[place], asked.get(place))
            for place, span in spans.items()
        )
        plan = self._plan(epoch_at, ranges)
        if gathered.batch is None and not self._is_something_due(plan):
            return None
        self._log.plan(plan)
        self._newest, self._asked = plan, None
        steps.done("plan")
        return plan

    def finish(self, plan: Plan, gathered: Gathered) -> None:
        """Run a planned epoch to its commit; another thread may gather the next meanwhile."""
        batch = gathered.batch or Batch()
        self._add_pings(batch, plan.ranges)
        self._finish(plan, batch, gathered.steps)

    def _landed(self) -> dict[Place, int]:
        """Give where landing stands when the epoch that is planned is committed."""
        return {} if self._newest is None else self._newest.landed()

    def _plan(self, epoch_at: int, ranges: tuple[Range, ...]) -> Plan:
        topics = self._settings.limits.topics
        asked_at = None if self._asked is None else self._asked.asked_at
        horizons = (*self._horizons, *_asked(epoch_at, asked_at, ranges))
        landed = {r.place: r.to_offset for r in ranges}
        last = self._last
        halves_known = known_at(
            horizons, landed, {} if last is None else last.halves_known_at, topics[HALF]
        )
        half_queues = {r.partition for r in ranges if r.topic == topics[HALF]}
        ops = {r.partition for r in ranges if r.topic == topics[OP]}
        # An op partition without a half partition has no halves to wait for.
        halves_known |= dict.fromkeys(ops - half_queues, epoch_at)
        return Plan(
            epoch=1 if last is None else last.epoch + 1,
            epoch_at=epoch_at,
            known_at=known_at(horizons, landed, {} if last is None else last.known_at, topics[OP]),
            halves_known_at=halves_known,
            ranges=ranges,
            cluster_id=self._cluster_id,
            topic_ids=self._topic_ids,
            next_offsets=_offsets(self._state.next_offsets),
            parameters={
                **asdict(self._settings.parameters),
                _WIRE: asdict(self._settings.limits),
                _SNAPSHOT_EPOCHS: self._settings.snapshot_epochs,
            },
            owner=self._settings.owner,
            rule_version=RULE_VERSION,
            asked_at=asked_at,
        )

    def _has_news(self, spans: Mapping[Place, range]) -> bool:
        """Say whether there is a record to land, our own PINGs aside."""
        admin = self._settings.limits.topics[ADMIN]
        return any(
            not self.are_own_pings(span) if topic == admin else len(span) > 0
            for (topic, _), span in spans.items()
        )

    def are_own_pings(self, offsets: range) -> bool:
        """Say whether we wrote all these admin records ourselves, as PINGs."""
        return all(offset in self.own_pings for offset in offsets)

    def _add_pings(self, batch: Batch, ranges: tuple[Range, ...]) -> None:
        """Land the PINGs of micro-batches that were no reason for an epoch."""
        admin = self._settings.limits.topics[ADMIN]
        landed = set(batch.rows(ADMIN)["queue_offset"].to_pylist())
        pings = [
            {
                "queue_id": r.partition,
                "queue_offset": offset,
                "stored_at": instant(self.own_pings[offset]),
                "command": PING,
                "actor": self._settings.owner,
            }
            for r in ranges
            if r.topic == admin
            for offset in range(r.from_offset, r.to_offset)
            if offset in self.own_pings and offset not in landed
        ]
        batch.add(ADMIN, pings)

    def _is_something_due(self, plan: Plan) -> bool:
        """Say whether time alone asks for an epoch: a check, a discard, a delivery, an orphan."""
        state = self._state
        queues = _queues(plan, self._settings.limits.topics[HALF])
        next_delivery_at = pc.min(state.delayed["deliver_at"]).as_py()
        if next_delivery_at is not None and next_delivery_at <= plan.epoch_at:
            return True
        known = {row["queue_id"]: row for row in queues.to_pylist()}
        ttl = self._settings.parameters.orphan_operation_ttl_ms
        for row in state.waiting.select(["queue_id", "landed_at", "half_queue_offset"]).to_pylist():
            queue = known.get(row["queue_id"], {})
            is_orphan = row["half_queue_offset"] >= (queue.get("half_end") or 0)
            if is_orphan and (queue.get("halves_known_at") or 0) - row["landed_at"] > ttl:
                return True
        if state.halves.num_rows == 0:
            return False
        return is_something_due(state.halves, queues, self._settings.parameters)

    def _finish(self, plan: Plan, batch: Batch, steps: Steps) -> None:
        """Run a planned epoch to its commit."""
        parameters = plan_parameters(plan)
        state, limits = self._state, plan_limits(plan)
        applier = self._applier(plan, batch)
        futures = applier.land(self._pool)
        try:
            inputs = inputs_of(batch, self._lake, state, plan, limits)
            queues = _queues(plan, limits.topics[HALF])
            decision = decide(state, inputs, Instants(plan.epoch_at, queues), parameters)
            steps.done("decide")
            applier.create_topics(decision)
            landed = list(futures)
            futures += applier.deliver(decision, landed, self._pool)
            counts = applier.record(decision)
            _raise_first(landed)
            decision = self._ask(plan, decision, counts)
            steps.done("ask")
            after = decision.state
            futures += self._record_state(applier, decision, counts)
        finally:
            wait(futures)
        _raise_first(futures)
        steps.done("apply")
        counts |= _counts(batch, decision)
        self._log.commit(plan, _offsets(after.next_offsets), counts, steps.step_ms, applier.work)
        messages = counts[f"landed_{HALF}"] + counts[f"landed_{SCHEDULE}"]
        self._settings.sizes.saw(messages, applier.work.get("landed_bytes", 0))
        self._state, self._last, self._newest = after, plan, plan
        self._horizons = still_ahead((*self._horizons, *_horizons(plan)), plan.landed())
        self.epochs_run += 1

    def _applier(self, plan: Plan, batch: Batch) -> Applier:
        sizes = self._settings.sizes
        return Applier(self._lake, plan, batch, self._deliverer, sizes, self._due_since())

    def _due_since(self) -> int | None:
        """Give the due time of the first message that waits."""
        earliest: int | None = pc.min(self._state.delayed["deliver_at"]).as_py()
        return earliest

    def _is_snapshot_due(self, plan: Plan) -> bool:
        interval = plan.parameters.get(_SNAPSHOT_EPOCHS)  # a backfill from files has none
        return interval is not None and plan.epoch % interval == 0

    def _ask(self, plan: Plan, decision: Decision, counts: dict[str, int]) -> Decision:
        """Ask what is due and record each attempt. What is recorded already is what counts."""
        lake, due = self._lake, decision.due
        is_asked = due.num_rows > 0 and lake.holds("checks", plan.epoch)
        if not is_asked:
            attempts = self._asker.ask(lake, due)
            rows = to_rows(
                attempts, schemas.CHECKS, sent_at=instant(plan.epoch_at), epoch=plan.epoch
            )
            is_asked = rows.num_rows > 0 and not lake.append("checks", rows, plan.epoch)
        if is_asked:
            attempts = lake.read("checks", where=pc.field("epoch") == plan.epoch)
            lake.count("checks", None)
        counts["checks"] = attempts.num_rows
        return record_attempts(decision, attempts, plan.epoch_at)

    def _record_state(
        self, applier: Applier, decision: Decision, counts: dict[str, int]
    ) -> list[Future[None]]:
        """Start writing what the epoch changed in the state, and now and then all of it."""
        plan = applier.plan
        is_snapshot = self._is_snapshot_due(plan)
        tables = {
            table: change_rows(
                table, decision.changes[frame], decision.state if is_snapshot else None, plan.epoch
            )
            for table, frame in FRAMES.items()
        }
        counts |= {table: rows.num_rows for table, rows in tables.items()}
        if is_snapshot:
            counts["snapshot"] = 1
        return [
            self._pool.submit(applier.append, table, rows)
            for table, rows in tables.items()
            if rows.num_rows
        ]

    def close(self) -> None:
        """Wait for what is being written and give the threads back."""
        self._pool.shutdown(wait=True)


def _horizons(plan: Plan) -> tuple[Horizon, ...]:
    return _asked(plan.epoch_at, plan.asked_at, plan.ranges)


def _asked(epoch_at: int, asked_at: int | None, ranges: tuple[Range, ...]) -> tuple[Horizon, ...]:
    """Give what Kafka was asked for an epoch: at T, and before the micro-batch was cut."""
    at_t = Horizon(epoch_at, {r.place: r.end_offset for r in ranges})
    if asked_at is None:
        return (at_t,)
    before = {r.place: r.asked_end_offset for r in ranges if r.asked_end_offset is not None}
    return Horizon(asked_at, before), at_t


def _raise_first(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()


def _offsets(frame: pa.Table) -> dict[tuple[str, int], int]:
    return {(r["topic"], r["queue_id"]): r["next_offset"] for r in frame.to_pylist()}


# Keys of a plan's parameters that are no parameter of the rules: decoding's limits, and how many
# epochs lie between two snapshots. An epoch that is run again takes one if the first run did.
_WIRE, _SNAPSHOT_EPOCHS = "wire", "snapshot_epochs"


def plan_parameters(plan: Plan) -> Parameters:
    """Give the rules' parameters in force at an epoch."""
    others = (_WIRE, _SNAPSHOT_EPOCHS)
    values: dict[str, Any] = {k: v for k, v in plan.parameters.items() if k not in others}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Parameters(**values)


def plan_limits(plan: Plan) -> WireLimits:
    """Give what decoding depended on at an epoch."""
    return WireLimits(**plan.parameters[_WIRE])


def _queues(plan: Plan, half_topic: str) -> pa.Table:
    """Give what the plan knows of each queue. Output: QUEUES."""
    half_ends = plan.queue_ends(half_topic)
    ids = sorted({*half_ends, *plan.known_at, *plan.halves_known_at})
    return pa.Table.from_pylist(
        [
            {
                "queue_id": queue,
                "known_at": plan.known_at.get(queue),
                "halves_known_at": plan.halves_known_at.get(queue),
                "half_end": half_ends.get(queue, 0),
            }
            for queue in ids
        ],
        schema=QUEUES,
    )


def _counts(batch: Batch, decision: Decision) -> dict[str, int]:
    """Count what the epoch landed and decided; `verify` adds them up again."""
    counts = {f"landed_{kind}": batch.rows(kind).num_rows for kind in LANDED_TABLES}
    halves = batch.rows(HALF)
    counts["unreadable_half"] = halves.num_rows - halves["error"].null_count
    for outcome in pc.unique(decision.outcomes["outcome"]).to_pylist():
        rows = decision.outcomes.filter(pc.equal(decision.outcomes["outcome"], outcome))
        counts[outcome.lower()] = rows.num_rows
    counts["placed"] = decision.placements.num_rows
    counts["due"] = decision.due.num_rows
    return counts
