"""A decision applied: landed files committed, decided rows written, messages delivered.

Each (table, epoch) is committed once (`LakeTable.once`). A table that holds the epoch is skipped:
the decision is a function of the plan, so the table has the rows that would be written.
"""

from __future__ import annotations

from collections.abc import Iterable
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

    `due`: between which instants the delivered messages were due, resumed ones aside, in ms.
    `work`: tasks and bytes, landed and delivered; filled on the way.
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

    def write_signed_operations(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Starts writing operations whose signatures were judged, before anything is decided.

        With other keys the next run might judge otherwise, so what is decided is written later.
        """
        if not self._has_verdicts:
            return []
        rows = to_rows(self.batch.rows(OP), schemas.OP, epoch=self.plan.epoch)
        return [pool.submit(self.append, OP, rows)]

    @property
    def _has_verdicts(self) -> bool:
        verdicts = self.batch.rows(OP)["is_signed"]
        return bool(verdicts.null_count < len(verdicts))

    def _land(self, kind: str) -> None:
        if self.lake.has_epoch(kind, self.plan.epoch):
            self.lake.stock.invalidate(kind)
        else:
            self._add_files(kind, self.batch.files[kind])

    def _add_files(self, table: str, files: Iterable[DataFile]) -> None:
        self.lake.add_files(table, list(files), self.plan.epoch)

    def write_decided_rows(
        self, decision: Decision, pool: ThreadPoolExecutor
    ) -> tuple[dict[str, int], list[Future[None]]]:
        """Starts writing narrow rows: operations, commands, and all that was decided but checks.

        Output: number of rows by table; the writes.
        """
        admin = run(
            "SELECT a.*, r.result FROM admin a"
            " LEFT JOIN results r ON a.queue_offset = r.admin_offset ORDER BY a.queue_offset",
            admin=self.batch.rows(ADMIN).drop_columns(["stored_at"]),
            results=decision.command_results,
        )
        stored_at = self.batch.rows(ADMIN)["stored_at"]
        admin = admin.append_column("stored_at", stored_at.cast(pa.timestamp("us", tz="UTC")))
        frames = {
            OP: self.batch.rows(OP),
            ADMIN: admin,
            "outcomes": decision.outcomes,
            "conflicts": decision.conflicts,
            "deliveries": decision.deliveries,
        }
        values = {"epoch": self.plan.epoch, "decided_at": instant(self.plan.epoch_at)}
        counts, writes = {}, []
        for table, frame in frames.items():
            rows = to_rows(frame, schemas.TABLES[table], **values)
            counts[table] = rows.num_rows
            if rows.num_rows and not (table == OP and self._has_verdicts):  # written already
                writes.append(pool.submit(self.append, table, rows))
        return counts, writes

    def append(self, table: str, rows: pa.Table) -> None:
        """Adds the epoch's rows to a table, unless it holds them."""
        self.lake.append(table, rows, self.plan.epoch)

    def create_topics(self, decision: Decision) -> None:
        """Writes new topics into the catalog, then makes their tables; skips what is there."""
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
        topics = decision.state.topics
        numbers = zip(topics["topic"].to_pylist(), topics["table_id"].to_pylist(), strict=True)
        tables = {topic: f"topics/{number}" for topic, number in numbers}
        used = pc.unique(decision.placements["topic"]).to_pylist()
        wanted = [
            topic for topic in used if not self.lake.has_epoch(tables[topic], self.plan.epoch)
        ]
        for topic in set(used) - set(wanted):
            self.lake.stock.invalidate(tables[topic])
        if not wanted:
            return []
        placements = decision.placements
        if len(wanted) < len(used):
            placements = placements.filter(pc.is_in(placements["topic"], pa.array(wanted)))
        for future in landed:
            future.result()
        delivery = Delivery(
            self.lake.place, self.plan.epoch, self.plan.epoch_at, placements, tables, self.due
        )
        tasks = self.sizes.delivery_tasks(placements.num_rows)
        files = self.deliverer.deliver(self.lake, delivery, tasks)
        size = sum(file.row_bytes for written in files.values() for file in written)
        self.work.update(delivered_tasks=tasks, delivered_bytes=size)
        return [pool.submit(self._add_files, *written) for written in files.items()]
