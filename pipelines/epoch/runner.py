"""One epoch: gather, plan, decide, apply, ask, commit. The only writer of the lake.

1. Gather: exact Kafka ranges; tasks of Spark decode the records and write those with bodies into
   files that no commit names yet (`land`). The epoch before can still be at 3 to 6.
2. Plan: `epoch_at`, Kafka's end offsets and hence `known_at`, in the `planned` row. From here on
   the epoch can be run again and gives the same rows.
3. Decide: `checker`, narrow columns only.
4. Apply: commit half and schedule; op, admin, outcomes, conflicts, deliveries; topic tables.
5. Ask: due checks, one row an attempt. Many messages go to their topic tables after it.
6. Commit: the changes of the state, in some epochs with a snapshot of it; then the `committed` row.

If a step fails, the epoch stays planned and the state in memory is thrown away. The next start runs
the epoch again from step 3; tables that hold it are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from checker.frames import State
from pipelines.epoch.batch import Batch
from pipelines.epoch.checks import CheckSender
from pipelines.epoch.commit import EpochCommitter, StepTimer, state_size
from pipelines.epoch.delivery import MessageDelivery
from pipelines.epoch.gaps import unexplained
from pipelines.epoch.land import Lander
from pipelines.epoch.listener import EpochListener
from pipelines.epoch.own_pings import OwnPings
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.plan import Planner
from pipelines.epoch.recover import adopt_rule_version, next_offsets, reload_batch
from pipelines.epoch.signatures import verify_signatures
from pipelines.kafka_client.admin import KafkaAdmin, Partition
from pipelines.kafka_client.record_reader import read_without_spark
from pipelines.kafka_client.source_log import SourceLog
from storage.lake.aging import advance_floor
from storage.lake.epochs import Plan, Progress, read_progress
from storage.lake.floor import Floor
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.snapshots import Snapshot
from storage.tasks.land import Landing
from storage.wire.record_kinds import ADMIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("txlake.kafka")
# How long an end waits for the warm-up of a start: it is in Arrow's code, which would abort a
# process that ends meanwhile. A JVM that is suspended does not answer.
_WARM_UP_S = 10.0


@dataclass(frozen=True)
class LandedBatch:
    """A micro-batch, landed before its `epoch_at` is fixed.

    `offset_ranges`: the offsets that it lands, by partition. `batch`: None if they hold no record
    but our own PINGs. Its files are written, and no commit names them yet.
    """

    offset_ranges: Mapping[Partition, range]
    batch: Batch | None
    steps: StepTimer


class EpochRunner:
    """The runner of epochs on one lake; it keeps the state between them.

    `lander`: who reads Kafka's records and lands them.

    `newest`: the last committed plan, or the one that is being finished.
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
        watch: EpochListener | None = None,
    ) -> None:
        self._watch = watch or EpochListener()
        self._lander = lander
        self._lake = lake
        self._settings = settings
        self._kafka = SourceLog(kafka)
        self._planner = Planner(self._kafka, settings, now_ms)
        self._planned = EpochCommitter(
            lake, asker, settings.sizes, MessageDelivery(lander.spark), self._watch
        )
        self.place = lake.place
        self.newest: Plan | None = None
        self.own_pings = OwnPings()
        self._warm_up: Thread | None = None

    @property
    def state(self) -> State:
        """Returns the state after the last committed epoch."""
        return self._planned.state

    @property
    def last(self) -> Plan | None:
        """Returns the last committed plan."""
        return self._planned.last

    def resume_from(self) -> Progress:
        """Reads the state from the lake, if that is whole. Output: where its epochs stand.

        Errors: BrokenLakeError if something that was committed is missing.
        """
        self._lake.reset()
        progress = read_progress(self._lake)
        require_intact(self._lake, progress, is_exclusive=True)
        self._planned.resume_from(progress)
        self.newest = progress.last
        self._planner.resume_from(progress)
        return progress

    def recover(self, progress: Progress) -> Plan | None:
        """Finishes a planned epoch. Output: its plan, if there was one.

        Errors: LostInputError if Kafka no longer has its records, and they are not landed.
        """
        if progress.unfinished is None:
            return None
        plan = adopt_rule_version(self._lake, progress.unfinished)
        self._kafka.start_offsets(next_offsets(self._lake, plan))
        batch = reload_batch(self._lander, self._lake, plan, self._settings, self._kafka.present)
        self._finish(plan, batch, StepTimer())
        self.newest = plan
        return plan

    def warm_up(self) -> None:
        """Prepares Spark for a landing, in a thread beside the other steps of a start."""
        landing = Landing(self._lake.place, 0, self._settings.limits)
        arguments = landing, self._settings.sizes.landing_tasks(0)
        self._warm_up = Thread(
            target=self._lander.warm_up, args=arguments, name="txlake-warm-up", daemon=True
        )
        self._warm_up.start()

    def start_offsets(self) -> dict[Partition, int]:
        """Returns where landing goes on: the committed ends, else Kafka's first offsets.

        Errors: LostInputError if Kafka no longer has the records that come next.
        """
        return self._kafka.start_offsets({} if self.last is None else self.last.landed())

    def begins(self, place: Partition, landed: int) -> int:
        """Returns where landing of a partition goes on, behind what is accepted as lost."""
        return self._kafka.begins(place, landed)

    def check_identity(self, plan: Plan | None) -> None:
        """Compares the Kafka cluster and topics with those of a plan. Errors: LostInputError."""
        self._kafka.check(plan)

    def prefetch_end_offsets(self) -> None:
        """Asks where Kafka ends before the next micro-batch is cut, if any half waits.

        A running epoch can bring a half, so it counts as one. Errors: KafkaAwayError.
        """
        may_ask = self.newest is not self.last or self.state.halves.num_rows > 0
        if self.newest is not None and may_ask:
            self._planner.prefetch_end_offsets(self.newest.landed())

    def run(self, records: DataFrame, to_offsets: Mapping[Partition, int]) -> Plan | None:
        """Runs one epoch over a micro-batch of Spark's Kafka source.

        Input: a micro-batch that begins where the last epoch ended; its end, by partition.
        Output: the epoch's plan; None if there was nothing to do.
        """
        gathered = self.land_batch(records, to_offsets)
        plan = self.plan(gathered)
        if plan is not None:
            self.finish(plan, gathered)
        return plan

    def land_batch(self, records: DataFrame, to_offsets: Mapping[Partition, int]) -> LandedBatch:
        """Lands a micro-batch. The epoch before is planned; it can still be running."""
        steps, newest = StepTimer(), self.newest
        spans = self._kafka.spans(to_offsets, {} if newest is None else newest.landed())
        batch = None
        if self._has_records(spans):
            epoch = 1 if newest is None else newest.epoch + 1
            landing = Landing(
                self._lake.place, epoch, self._settings.limits, self._settings.intake.narrow_bytes
            )
            present = self._kafka.present(spans)
            tasks = self._settings.sizes.landing_tasks(sum(map(len, present.values())))
            plainly = partial(read_without_spark, self._settings.kafka, present)
            batch = self._lander.land(records, landing, tasks, plainly)
            for gap in unexplained(batch, present, self._settings.limits.topics):
                log.error("%s", gap)
            verify_signatures(batch, self._settings.security)
            self._settings.sizes.observe(batch.landed_messages, batch.landed_bytes)
        steps.lap("gather")
        return LandedBatch(spans, batch, steps)

    def _has_records(self, offset_ranges: Mapping[Partition, range]) -> bool:
        """Returns whether there is a record to land, our own PINGs aside."""
        admin = self._settings.limits.topics[ADMIN]
        return any(
            not self.own_pings.covers(span) if topic == admin else len(span) > 0
            for (topic, _), span in offset_ranges.items()
        )

    def plan(self, gathered: LandedBatch) -> Plan | None:
        """Fixes `epoch_at` and writes the `planned` row. The epoch before is committed.

        Output: None if there is nothing to do: no record came, and nothing is due.
        """
        gathered.steps.lap("wait")
        self._kafka.check(self.last)  # records of another Kafka are in no commit yet
        plan = self._planner.plan(gathered.offset_ranges, self.last, self._marks_at)
        if gathered.batch is None and not self._planner.is_due(plan, self.state):
            self._watch.on_idle(plan)
            return None
        self._planned.log.plan(plan)
        self.newest = plan
        self._planner.drop_prefetched()
        gathered.steps.lap("plan")
        return plan

    def _marks_at(self, epoch: int, epoch_at: int) -> tuple[Floor, Snapshot]:
        """Returns the floor of an epoch and the newest snapshot; both move in one of so many."""
        last, settings = self.last, self._settings
        floor, snapshot = (Floor(), Snapshot()) if last is None else (last.floor, last.snapshot)
        if last is not None and snapshot.epoch != last.epoch:
            snapshot = replace(snapshot, changes=snapshot.changes + self._planned.changes)
        if epoch % settings.snapshot_epochs:
            return floor, snapshot
        if last is not None:
            floor = advance_floor(self._lake, last, epoch_at - settings.retention_ms)
        rows = state_size(self.state)["state_rows"]
        if snapshot.is_due(epoch_at, rows, settings.retention_ms):
            snapshot = Snapshot(epoch, epoch_at)
        return floor, snapshot

    def finish(self, plan: Plan, gathered: LandedBatch) -> None:
        """Runs a planned epoch to its commit; another thread can gather the next one meanwhile."""
        batch, admin = gathered.batch or Batch(), self._settings.limits.topics[ADMIN]
        landed = set(batch.rows(ADMIN)["queue_offset"].to_pylist())
        pings = self.own_pings.rows(plan.ranges, admin, self._settings.owner)
        batch.add(ADMIN, [ping for ping in pings if ping["queue_offset"] not in landed])
        self._finish(plan, batch, gathered.steps)

    def _finish(self, plan: Plan, batch: Batch, steps: StepTimer) -> None:
        self._planned.finish(plan, batch, steps)
        self._planner.committed(plan)

    def close(self) -> None:
        """Waits for running writes and gives the threads back."""
        self._planned.close()
        if self._warm_up is not None:
            self._warm_up.join(_WARM_UP_S)
