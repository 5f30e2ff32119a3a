"""Apply a decision: commit what was landed, write what was decided, deliver messages.

Each (table, epoch) is committed once (`Lake.once`). A table that holds the epoch is skipped: what
it holds is what would be written, since the decision is a function of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import Decision
from checker.sql import run
from pipelines.batch import Batch
from pipelines.deliver import Deliverer
from pipelines.sizes import Sizes
from storage import schemas
from storage.data_files import DataFile
from storage.deliver import Delivery
from storage.epochs import Plan
from storage.kafka_rows import ADMIN, HALF, OP, SCHEDULE
from storage.lake import Lake
from storage.row_groups import Bounds
from storage.rows import instant, to_rows


@dataclass(frozen=True)
class Applier:
    """Write one epoch.

    `due_since`: when the first of the messages that waited before the epoch was due, in ms.
    `work`: in how many tasks it was delivered, and how many bytes; filled as it goes.
    """

    lake: Lake
    plan: Plan
    batch: Batch
    deliverer: Deliverer
    sizes: Sizes
    due_since: int | None
    work: dict[str, int] = field(default_factory=dict)

    def land(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start committing half and schedule records; it needs no decision."""
        self.work.update(landed_tasks=self.batch.tasks, landed_bytes=self.batch.landed_bytes)
        self.work.update(delivered_tasks=0, delivered_bytes=0)
        kinds = [kind for kind in (HALF, SCHEDULE) if self.batch.rows(kind).num_rows]
        return [pool.submit(self._land, kind) for kind in kinds]

    def _land(self, kind: str) -> None:
        if self.lake.holds(kind, self.plan.epoch):
            self.lake.count(kind, None)
        else:
            self._add_files(kind, self.batch.files[kind])

    def _add_files(self, table: str, files: Iterable[DataFile]) -> None:
        self.lake.add_files(table, list(files), self.plan.epoch)

    def record(self, decision: Decision) -> dict[str, int]:
        """Write the narrow rows: operations, commands, and all that was decided but checks.

        Output: rows by table.
        """
        plan = self.plan
        decided = {"epoch": plan.epoch, "decided_at": instant(plan.epoch_at)}
        admin = run(
            "SELECT a.*, r.result FROM admin a"
            " LEFT JOIN results r ON a.queue_offset = r.admin_offset ORDER BY a.queue_offset",
            admin=self.batch.rows(ADMIN).drop_columns(["stored_at"]),
            results=decision.command_results,
        )
        stored_at = self.batch.rows(ADMIN)["stored_at"]
        admin = admin.append_column("stored_at", stored_at.cast(pa.timestamp("us", tz="UTC")))
        tables: dict[str, tuple[pa.Table, dict[str, Any]]] = {
            "op": (self.batch.rows(OP), {"epoch": plan.epoch}),
            "admin": (admin, {"epoch": plan.epoch}),
            "outcomes": (decision.outcomes, decided),
            "conflicts": (decision.conflicts, decided),
            "deliveries": (decision.deliveries, decided),
        }
        counts = {}
        for table, (frame, values) in tables.items():
            schema = schemas.TABLES[table]
            names = set(schema.names)
            rows = to_rows(frame, schema, **{k: v for k, v in values.items() if k in names})
            counts[table] = rows.num_rows
            if rows.num_rows:
                self.append(table, rows)
        return counts

    def append(self, table: str, rows: pa.Table) -> None:
        """Add the epoch's rows to a table, unless it holds them."""
        self.lake.append(table, rows, self.plan.epoch)

    def create_topics(self, decision: Decision) -> None:
        """Write new topics into the catalog, then make their tables; both if missing."""
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
        """Start writing messages into their topics' tables, when they are landed."""
        topics = decision.state.topics
        numbers = zip(topics["topic"].to_pylist(), topics["table_id"].to_pylist(), strict=True)
        tables = {topic: f"topics/{number}" for topic, number in numbers}
        used = pc.unique(decision.placements["topic"]).to_pylist()
        wanted = [topic for topic in used if not self.lake.holds(tables[topic], self.plan.epoch)]
        for topic in set(used) - set(wanted):
            self.lake.count(tables[topic], None)
        if not wanted:
            return []
        placements = decision.placements
        if len(wanted) < len(used):
            placements = placements.filter(pc.is_in(placements["topic"], pa.array(wanted)))
        delivery = Delivery(
            self.lake.place, self.plan.epoch, self.plan.epoch_at, placements, tables, self._due()
        )
        return [pool.submit(self._deliver, delivery, landed, pool)]

    def _deliver(
        self, delivery: Delivery, landed: list[Future[None]], pool: ThreadPoolExecutor
    ) -> None:
        for future in landed:
            future.result()
        tasks = self.sizes.delivery_tasks(delivery.placements.num_rows)
        files = self.deliverer.deliver(self.lake, delivery, tasks)
        size = sum(file.row_bytes for written in files.values() for file in written)
        self.work.update(delivered_tasks=tasks, delivered_bytes=size)
        committing = [pool.submit(self._add_files, *written) for written in files.items()]
        for future in committing:
            future.result()

    def _due(self) -> Bounds | None:
        """Say when what waited and is delivered now was due, all of it but resumed messages."""
        return None if self.due_since is None else (self.due_since, self.plan.epoch_at)
