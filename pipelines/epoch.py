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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checker.frames import State
from pipelines.ask import Asks
from pipelines.batch import Batch
from pipelines.deliver import Deliverer
from pipelines.epoch_settings import EpochSettings
from pipelines.kafka_log import KafkaLog
from pipelines.kafka_topics import KafkaTopics, Place
from pipelines.land import land
from pipelines.pings import OwnPings
from pipelines.plan import Planner
from pipelines.planned import PlannedEpochs, Steps, offsets_of
from pipelines.recover import batch_again, with_our_rules
from storage.epochs import Plan, Progress, read_progress
from storage.kafka_rows import ADMIN
from storage.lake import Lake
from storage.land import Landing
from storage.whole import require_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITERS = 4


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
        self._settings = settings
        self._kafka = KafkaLog(kafka)
        self._planner = Planner(self._kafka, settings, now_ms)
        self._planned = PlannedEpochs(lake, asker, settings.sizes, Deliverer(spark))
        self._newest: Plan | None = None
        self.own_pings = OwnPings()

    @property
    def state(self) -> State:
        """Return the state after the last committed epoch."""
        return self._planned.state

    @property
    def last(self) -> Plan | None:
        """Return the last committed plan."""
        return self._planned.last

    @property
    def newest(self) -> Plan | None:
        """Return the newest plan: the last committed one, or the one that is being finished."""
        return self._newest

    def take_up(self) -> Progress:
        """Read the state from the lake, if that is whole. Output: where its epochs stand.

        Errors: BrokenLakeError when something is not there that was committed.
        """
        self._lake.forget()
        progress = read_progress(self._lake)
        require_whole(self._lake, progress, is_alone=True)
        self._planned.take_up(progress)
        self._newest = progress.last
        self._planner.take_up(progress)
        return progress

    def recover(self, progress: Progress) -> Plan | None:
        """Finish a planned epoch. Output: its plan, if there was one."""
        if progress.unfinished is None:
            return None
        plan = with_our_rules(self._lake, progress.unfinished)
        self._finish(plan, batch_again(self._spark, self._lake, plan, self._settings), Steps())
        self._newest = plan
        return plan

    def start_offsets(self) -> dict[Place, int]:
        """Return where landing goes on: the committed ends, else Kafka's first offsets.

        Errors: LostInputError when Kafka no longer has what comes next.
        """
        return self._kafka.start_offsets({} if self.last is None else self.last.landed())

    def check_identity(self, plan: Plan | None) -> None:
        """Compare the Kafka cluster and topics with those of a plan. Errors: LostInputError."""
        self._kafka.check(plan)

    def look_ahead(self) -> None:
        """Ask where Kafka ends before the next micro-batch is cut, if any half waits.

        An epoch that is not committed yet may bring some. Errors: KafkaAwayError.
        """
        may_ask = self._newest is not self.last or self.state.halves.num_rows > 0
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
        """Return whether there is a record to land, our own PINGs aside."""
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
            self._kafka.check(self.last)  # landing and waiting may have taken a while
        plan = self._planner.plan(gathered.spans, self.last, offsets_of(self.state))
        if gathered.batch is None and not self._planner.is_due(plan, self.state):
            return None
        self._planned.log.plan(plan)
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
        self._planned.finish(plan, batch, steps)
        self._planner.committed(plan)

    def close(self) -> None:
        """Wait for what is being written and give the threads back."""
        self._planned.close()
