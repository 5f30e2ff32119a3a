"""A decision applied: landed files committed, decided rows written, messages delivered.

Each (table, epoch) is committed once (`LakeTable.commit_once`). A table that holds the epoch is
skipped: the decision is a function of the plan, so the table has the rows that would be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import Decision
from checker.frames_ops.sql import run
from pipelines.epoch.batch import Batch
from pipelines.epoch.delivery import MessageDelivery
from pipelines.epoch.task_sizing import TaskSizing
from storage import schemas
from storage.files.data_files import DataFile
from storage.files.row_groups import Bounds
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.rows import instant, to_rows
from storage.tasks.deliver import Delivery
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE


@dataclass(frozen=True)
class EpochWriter:
    """The writer of one epoch.

    `due`: the first and the last instant at which delivered messages were due, in ms; resumed ones
    aside. `work`: tasks and bytes, landed and delivered; filled on the way.
    """

    lake: Lake
    plan: Plan
    batch: Batch
    deliverer: MessageDelivery
    sizes: TaskSizing
    due: Bounds | None
    work: dict[str, int] = field(default_factory=dict)

    def land(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Starts committing half and schedule records, before anything is decided."""
        self.work.update(
            landed_tasks=self.batch.tasks,
            landed_bytes=self.batch.landed_bytes,
            lag_ms=self.batch.lag_ms(self.plan.epoch_at),
            delivered_tasks=0,
            delivered_bytes=0,
        )

        kinds = [kind for kind in (HALF, SCHEDULE) if self.batch.rows(kind).num_rows]
        return [pool.submit(self._land, kind) for kind in kinds]

    def write_operations(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Starts writing operations, before anything is decided.

        With other keys the next run could verify them otherwise: it reads what is written.
        """
        rows = to_rows(self.batch.rows(OP), schemas.OP, epoch=self.plan.epoch)
        return [pool.submit(self.append, OP, rows)] if rows.num_rows else []

    def _land(self, kind: str) -> None:
        if self.lake.has_epoch(kind, self.plan.epoch):
            self.lake.row_counts.invalidate(kind)
        else:
            self._add_files(kind, self.batch.files[kind])

    def _add_files(self, table: str, files: Iterable[DataFile]) -> None:
        self.lake.add_files(table, list(files), self.plan.epoch)

    def write_decided_rows(
        self, decision: Decision, pool: ThreadPoolExecutor
    ) -> tuple[dict[str, int], list[Future[None]]]:
        """Starts writing narrow rows: commands, and the decision but for its checks.

        Output: number of rows by table; the writes.
        """
        frames = {
            ADMIN: self._commands_with_results(decision),
            "outcomes": decision.outcomes,
            "conflicts": decision.conflicts,
            "deliveries": decision.deliveries,
        }
        decided_at = instant(self.plan.epoch_at)

        counts = {OP: self.batch.rows(OP).num_rows}
        writes = []
        for table, frame in frames.items():
            schema = schemas.TABLES[table]
            rows = to_rows(frame, schema, epoch=self.plan.epoch, decided_at=decided_at)
            counts[table] = rows.num_rows
            if rows.num_rows:
                writes.append(pool.submit(self.append, table, rows))
        return counts, writes

    def _commands_with_results(self, decision: Decision) -> pa.Table:
        """Returns the admin records, each with the result of its command."""
        records = self.batch.rows(ADMIN)
        commands = run(
            "SELECT a.*, r.result FROM admin a"
            " LEFT JOIN results r ON a.queue_offset = r.admin_offset ORDER BY a.queue_offset",
            admin=records.drop_columns(["stored_at"]),
            results=decision.command_results,
        )

        stored_at = records["stored_at"].cast(pa.timestamp("us", tz="UTC"))
        return commands.append_column("stored_at", stored_at)

    def append(self, table: str, rows: pa.Table) -> None:
        """Adds the epoch's rows to a table, unless it holds them."""
        self.lake.append(table, rows, self.plan.epoch)

    def create_topics(self, decision: Decision) -> None:
        """Writes new topics into the catalog, then makes their tables; skips those that exist."""
        rows = to_rows(
            decision.new_topics,
            schemas.CATALOG,
            epoch=self.plan.epoch,
            created_at=instant(self.plan.epoch_at),
        )
        if rows.num_rows == 0:
            return

        self.append("catalog", rows)
        for table_id in decision.new_topics["table_id"].to_pylist():
            self.lake.create_table(f"topics/{table_id}")

    def deliver(
        self, decision: Decision, landed: list[Future[None]], pool: ThreadPoolExecutor
    ) -> list[Future[None]]:
        """Writes messages into files, once their records are landed; starts committing these."""
        tables = {
            row["topic"]: f"topics/{row['table_id']}" for row in decision.state.topics.to_pylist()
        }
        placements = self._without_written_topics(decision.placements, tables)
        if placements.num_rows == 0:
            return []

        for future in landed:
            future.result()

        delivery = Delivery(
            self.lake.location, self.plan.epoch, self.plan.epoch_at, placements, tables, self.due
        )
        tasks = self.sizes.delivery_tasks(placements.num_rows)
        files = self.deliverer.deliver(self.lake, delivery, tasks)

        delivered_bytes = sum(file.row_bytes for written in files.values() for file in written)
        self.work.update(delivered_tasks=tasks, delivered_bytes=delivered_bytes)
        return [pool.submit(self._add_files, table, written) for table, written in files.items()]

    def _without_written_topics(self, placements: pa.Table, tables: Mapping[str, str]) -> pa.Table:
        """Returns the placements of topics whose tables do not hold the epoch yet."""
        topics = pc.unique(placements["topic"]).to_pylist()
        written = [topic for topic in topics if self.lake.has_epoch(tables[topic], self.plan.epoch)]
        if not written:
            return placements

        for topic in written:
            self.lake.row_counts.invalidate(tables[topic])
        return placements.filter(pc.invert(pc.is_in(placements["topic"], pa.array(written))))
