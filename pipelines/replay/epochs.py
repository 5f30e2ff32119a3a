"""Recorded epochs run by the job's own steps: records, `epoch_at`, `known_at`, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import RULE_VERSION
from checker.match.sql import run
from pipelines.epoch.apply import Applier
from pipelines.epoch.ask import ATTEMPTS
from pipelines.epoch.batch import Batch
from pipelines.epoch.deliver import Deliverer
from pipelines.epoch.parameters import plan_limits
from pipelines.epoch.planned import PlannedEpochs, Steps
from pipelines.epoch.sizes import Sizes
from pipelines.replay.apply import StreamingApplier
from pipelines.replay.source import Chunk, Source
from storage.errors import LakeError
from storage.files.messages import Tables
from storage.lake.epochs import Plan, read_progress
from storage.lake.lake import Lake
from storage.lake.staged import StagedLake
from storage.wire.kinds import WireLimits
from txlake.protocol import UNDELIVERABLE_TOPIC

_ATTEMPTS_AMONG_DUE = """
SELECT queue_id, queue_offset, arm, check_times, any_value(c.check_id) AS check_id,
  any_value(c.producer_group) AS producer_group, bool_or(acknowledged) AS acknowledged
FROM checks c SEMI JOIN due d USING (queue_id, queue_offset, arm, check_times)
GROUP BY ALL
"""


class RecordedAsker:
    """An asker with recorded answers: the checks that were sent, and what Kafka acknowledged."""

    def __init__(self) -> None:
        self.checks = ATTEMPTS.empty_table()

    def ask(self, lake: Lake, due: pa.Table) -> pa.Table:
        """Returns the recorded attempts among the due checks. Input: DUE. Output: ATTEMPTS."""
        if due.num_rows == 0 or self.checks.num_rows == 0:
            return ATTEMPTS.empty_table()
        return run(_ATTEMPTS_AMONG_DUE, checks=self.checks, due=due).cast(ATTEMPTS)


class ReplayedEpochs(PlannedEpochs):
    """The runner of epochs whose plans are given, without Kafka, Spark and the clock.

    Input: the lake to write; the tables of half and schedule records; the asker for the checks.
    """

    def __init__(
        self, lake: StagedLake, limits: WireLimits, messages: Tables, asker: RecordedAsker
    ) -> None:
        super().__init__(lake, asker, Sizes(1), Deliverer(None))
        self.limits = limits
        self._messages = messages
        self._recorded = asker
        self._recorded_snapshot: int | None = None
        self._is_heavy = False

    @classmethod
    def over(cls, source: Source, lake: StagedLake) -> ReplayedEpochs:
        """Returns a runner of what a lake recorded. Errors: LakeError if it has no epoch."""
        newest = read_progress(source.lake).last
        if newest is None:
            raise LakeError(f"the lake {source.lake.path} has no committed epoch")
        return cls(lake, plan_limits(newest), source, RecordedAsker())

    def undeliverable_tables(self) -> list[str]:
        """Returns the table of TRANS_UNDELIVERABLE_TOPIC, if there is one: commands read it."""
        rows = self.state.topics.filter(pc.field("topic") == UNDELIVERABLE_TOPIC)
        return [f"topics/{table_id}" for table_id in rows["table_id"].to_pylist()]

    def chain_plan(self, plan: Plan) -> pa.Table:
        """Returns the planned row of the epoch to replay next; the caller writes it."""
        return self.log.planned(self._planned_again(plan))

    def _planned_again(self, plan: Plan) -> Plan:
        return replace(plan, rule_version=RULE_VERSION)

    def replay_chunk(self, chunk: Chunk, tell: Callable[[int], None]) -> None:
        """Runs some recorded epochs; calls `tell` with the number of records of each."""
        for recorded in chunk.epochs:
            epoch = recorded.plan.epoch
            self._recorded.checks = chunk.checks.filter(pc.field("epoch") == epoch)
            records = chunk.records(epoch)
            self.replay(recorded.plan, records, recorded.snapshot, chunk.is_heavy)
            tell(recorded.record_count)

    def replay(
        self,
        plan: Plan,
        records: Mapping[str, pa.Table],
        snapshot: int | None = None,
        is_heavy: bool = False,
        is_planned: bool = False,
    ) -> None:
        """Runs one epoch.

        Input: its plan; the records that it landed, by kind; `snapshot`: as its row counts it;
        `is_heavy`: they lack their bodies; `is_planned`: its `planned` row is written, or
        `chain_plan` gave it to the caller.
        """
        plan = self._planned_again(plan)
        self._recorded_snapshot = snapshot
        if not is_planned:
            self.log.plan(plan)
        self._is_heavy = is_heavy
        self.finish(plan, Batch(dict(records)), Steps())

    def _applier(self, plan: Plan, batch: Batch) -> Applier:
        return StreamingApplier(
            self._lake, plan, batch, self._deliverer, self._sizes,
            self._due(plan), source=self._messages, is_heavy=self._is_heavy,
        )  # fmt: skip

    def _snapshot(self, plan: Plan) -> int | None:
        return self._recorded_snapshot
