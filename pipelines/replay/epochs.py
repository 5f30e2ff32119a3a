"""Recorded epochs run by the job's own steps: records, `epoch_at`, `known_at`, acknowledgements.

They give the same rows as the job's, without tasks and files of their own. A replay reads its
records from a lake or an archive. Few records are read whole, with their messages; the messages of
many are streamed from their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import ATTEMPTS, RULE_VERSION, Decision
from checker.frames_ops.columns import index_of
from checker.frames_ops.sql import run
from pipelines.epoch.batch import Batch
from pipelines.epoch.delivery import MessageDelivery
from pipelines.epoch.runner import EpochCommitter, PlannedEpoch, StepTimer
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.epoch.write import EpochWriter
from pipelines.replay.source import Chunk
from storage import schemas
from storage.files.messages import Tables, read_messages
from storage.lake.buffered import BufferedLake
from storage.lake.epoch_log import next_plan_row
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.rows import instant, to_rows
from storage.schemas import row_keys
from storage.tasks.deliver import PlacementIndex, missing_messages, topic_rows
from storage.wire.record_kinds import HALF, SCHEDULE
from txlake.protocol import UNDELIVERABLE_TOPIC

BYTES_MAX = 256 * 1024 * 1024  # memory for older messages that are delivered to one topic
WAITING_BYTES_MAX = 256 * 1024 * 1024  # memory for rows of several epochs that wait
_PLACE_NAMES = {
    "real_queue_id": "queue_id",
    "real_queue_offset": "queue_offset",
    "queue_id": "half_queue_id",
    "queue_offset": "half_queue_offset",
}
_ATTEMPTS_AMONG_DUE = """
SELECT queue_id, queue_offset, arm, check_times, any_value(c.check_id) AS check_id,
  any_value(c.producer_group) AS producer_group, bool_or(acknowledged) AS acknowledged
FROM checks c SEMI JOIN due d USING (queue_id, queue_offset, arm, check_times)
GROUP BY ALL
"""


@dataclass(frozen=True, kw_only=True)
class StreamingApplier(EpochWriter):
    """The writer of an epoch into a lake whose appends wait.

    `source`: the half and schedule records with all heavy columns; `is_streamed`: the batch has its
    messages without heavy columns.
    """

    source: Tables
    is_streamed: bool = False

    def land(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Starts writing half and schedule records."""
        kinds = [kind for kind in (HALF, SCHEDULE) if self.batch.rows(kind).num_rows]
        return [pool.submit(self._land, kind) for kind in kinds]

    def _land(self, kind: str) -> None:
        rows = self.batch.rows(kind)
        epoch = self.plan.epoch

        if self.is_streamed:
            pieces = (to_rows(piece, schemas.HALF, epoch=epoch) for piece in self._read(kind, rows))
            self._append_stream(kind, pieces)
        else:
            self.append(kind, to_rows(rows, schemas.HALF, epoch=epoch))

    def _append_stream(self, table: str, pieces: Iterator[pa.Table]) -> None:
        cast(BufferedLake, self.lake).append_stream(table, pieces, self.plan.epoch)

    def deliver(
        self, decision: Decision, landed: list[Future[None]], pool: ThreadPoolExecutor
    ) -> list[Future[None]]:
        """Starts writing messages, one append a topic."""
        placements = decision.placements
        used = set(pc.unique(placements["topic"]).to_pylist())

        def start(table_id: str, topic: str) -> Future[None]:
            of_topic = placements.filter(pc.equal(placements["topic"], topic))
            return pool.submit(self._write_messages, f"topics/{table_id}", of_topic)

        return [
            start(row["table_id"], row["topic"])
            for row in decision.state.topics.to_pylist()
            if row["topic"] in used
        ]

    def _write_messages(self, table: str, placements: pa.Table) -> None:
        messages = None if self.is_streamed else self._in_memory(placements)
        if messages is None:
            self._append_stream(table, self._streamed(placements))
        else:
            self.append(table, messages)

    def _in_memory(self, placements: pa.Table) -> pa.Table | None:
        """Returns messages in the order of their real queues; None if they are too large."""
        parts = []
        size = 0

        for source in pc.unique(placements["source"]).to_pylist():
            of_source = placements.filter(pc.equal(placements["source"], source))
            records = self.batch.rows(source)
            is_new = index_of(row_keys(of_source), row_keys(records)) >= 0
            tables = [to_rows(records, schemas.HALF)] if is_new.any() else []

            for batch in self._older(source, of_source.filter(pa.array(~is_new))):
                size += batch.nbytes
                if size > BYTES_MAX:
                    return None
                tables.append(to_rows(pa.Table.from_batches([batch]), schemas.HALF))

            messages = pa.concat_tables([schemas.HALF.empty_table(), *tables])
            index = index_of(row_keys(of_source), row_keys(messages))
            missing = int((index < 0).sum())
            if missing:
                raise missing_messages(self.plan.epoch, source, of_source.num_rows, missing)

            messages = messages.take(pa.array(index))
            parts.append(topic_rows(messages, of_source, self.plan.epoch, self.plan.epoch_at))

        rows = pa.concat_tables(parts)
        return rows.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])

    def _older(self, source: str, placements: pa.Table) -> Iterator[pa.RecordBatch]:
        """Returns the messages that earlier epochs landed."""
        if placements.num_rows:
            yield from read_messages(
                self.lake,
                source,
                placements,
                schemas.HALF.names,
                self.plan.epoch,
                self.due if source == SCHEDULE else None,
                self.lake.opened,
            )

    def _streamed(self, placements: pa.Table) -> Iterator[pa.Table]:
        """Returns messages with their real queues and offsets, piece by piece.

        Errors: LakeError if some were not landed.
        """
        for source in pc.unique(placements["source"]).to_pylist():
            of_source = placements.filter(pc.equal(placements["source"], source))
            index = PlacementIndex(of_source)
            missing = of_source.num_rows

            for piece in self._read(source, of_source):
                missing -= piece.num_rows
                yield topic_rows(piece, index.of(piece), self.plan.epoch, self.plan.epoch_at)

            if missing:
                raise missing_messages(self.plan.epoch, source, of_source.num_rows, missing)

    def _read(self, kind: str, rows: pa.Table) -> Iterator[pa.Table]:
        """Returns the messages at the places of some rows, each once."""
        keys = rows.select(["queue_id", "queue_offset"])
        existing = self.source.dataset(kind).schema.names
        columns = [name for name in schemas.HALF.names if name in existing]
        seen: set[int] = set()  # archives can overlap

        for batch in read_messages(self.source, kind, keys, columns):
            fresh = []
            for index, key in enumerate(row_keys(batch).tolist()):
                if key not in seen:
                    seen.add(key)
                    fresh.append(index)

            messages = pa.Table.from_batches([batch])
            if len(fresh) == messages.num_rows:
                yield messages
            else:
                yield messages.take(pa.array(fresh, pa.int64()))


@dataclass(frozen=True, kw_only=True)
class NarrowApplier(StreamingApplier):
    """The writer of decisions and of the places of messages, without the messages."""

    def _write_messages(self, table: str, placements: pa.Table) -> None:
        names = [_PLACE_NAMES.get(name, name) for name in placements.column_names]
        frame = placements.rename_columns(names).drop_columns("topic")
        rows = to_rows(
            frame,
            schemas.TOPIC,
            stored_at=instant(self.plan.epoch_at),
            epoch=self.plan.epoch,
        )
        self.append(table, rows)


class RecordedAsker:
    """An asker with recorded answers: the checks that were sent, and which Kafka acknowledged."""

    def __init__(self) -> None:
        self.checks = ATTEMPTS.empty_table()

    def ask(self, lake: Lake, due: pa.Table) -> pa.Table:
        """Returns the recorded attempts among the due checks. Input: DUE. Output: ATTEMPTS."""
        if due.num_rows == 0 or self.checks.num_rows == 0:
            return ATTEMPTS.empty_table()
        return run(_ATTEMPTS_AMONG_DUE, checks=self.checks, due=due).cast(ATTEMPTS)


class ReplayedEpochs(EpochCommitter):
    """The runner of epochs whose plans are given, without Kafka, Spark and the clock.

    Input: the lake to write; the tables of half and schedule records; the asker for the checks.
    """

    def __init__(self, lake: BufferedLake, messages: Tables, asker: RecordedAsker) -> None:
        super().__init__(lake, asker, TaskSizing(1), MessageDelivery(None))
        self._waiting = lake
        self._messages = messages
        self._recorded = asker
        self._recorded_snapshot: int | None = None
        self._is_streamed = False

    def undeliverable_tables(self) -> list[str]:
        """Returns the table of TRANS_UNDELIVERABLE_TOPIC, if there is one: commands read it."""
        rows = self.state.topics.filter(pc.field("topic") == UNDELIVERABLE_TOPIC)
        return [f"topics/{table_id}" for table_id in rows["table_id"].to_pylist()]

    def replay_chunk(self, chunk: Chunk, report: Callable[[int], None]) -> Iterator[Chunk]:
        """Runs some recorded epochs; calls `report` with the number of records of each.

        Yields the chunk in parts, whose rows wait in the lake for the caller to take: what it
        delivers can be far larger than what it has landed.
        """
        first = 0

        for end, recorded in enumerate(chunk.epochs, 1):
            plan = recorded.plan
            epoch = plan.epoch
            self._recorded.checks = chunk.checks.filter(pc.field("epoch") == epoch)
            self.replay(plan, chunk.records(epoch), recorded.snapshot, chunk.is_streamed)
            report(recorded.record_count)

            if self._waiting.staged_bytes > WAITING_BYTES_MAX or end == len(chunk.epochs):
                yield chunk.part(first, end)
                first = end

    def begin(self, plan: Plan) -> pa.Table:
        """Takes a plan as the newest. Output: its row, for the caller to write."""
        row, self.progress = next_plan_row(self._lake, self.progress, plan)
        return row

    def replay(
        self,
        plan: Plan,
        records: Mapping[str, pa.Table],
        snapshot: int | None = None,
        is_streamed: bool = False,
        is_planned: bool = False,
    ) -> None:
        """Runs one epoch.

        Input: its plan; the records that it landed, by kind; `snapshot`: as the epoch's
        row counts it; `is_streamed`: the records lack their bodies; `is_planned`: its
        `planned` row is written, or the caller writes the one that `begin` gave.
        """
        plan = replace(plan, rule_version=RULE_VERSION)

        if not is_planned:
            self.plan(plan)

        self._recorded_snapshot = snapshot
        self._is_streamed = is_streamed
        self.finish(PlannedEpoch(plan, Batch(dict(records)), StepTimer()))

    def _applier(self, plan: Plan, batch: Batch) -> EpochWriter:
        return StreamingApplier(
            self._lake,
            plan,
            batch,
            self._deliverer,
            self._sizes,
            self._due(plan),
            source=self._messages,
            is_streamed=self._is_streamed,
        )

    def _snapshot(self, plan: Plan) -> int | None:
        return self._recorded_snapshot
