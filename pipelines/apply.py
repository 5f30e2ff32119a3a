"""Apply a decision: land what came, write what was decided, deliver messages.

Each (table, epoch) is committed once (`Lake.once`). A table that holds the epoch is skipped: what
it holds is what would be written, since the decision is a function of the plan. Rows are
written from the driver. Only where an epoch's messages are too large for it (`DRIVER_BYTES_MAX`)
Spark writes those with bodies, from the persisted micro-batch, and for older halves from the
touched ranges of `half` and `schedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import find
from checker.columns import places as numbers
from checker.frames import Decision
from checker.sql import run
from pipelines.gather import DRIVER_BYTES_MAX, Batch
from storage import schemas
from storage.epochs import Plan
from storage.errors import LakeError
from storage.file_order import order_of
from storage.kafka_rows import ADMIN, HALF, OP, SCHEDULE
from storage.lake import Lake
from storage.messages import read_messages
from storage.rows import instant, to_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Below this an epoch's rows of a table go into one file: fewer files, and one task is enough.
_ROWS_PER_FILE = 50_000

_TOPIC_ROW = (
    "p.real_queue_id AS queue_id", "p.real_queue_offset AS queue_offset",
    "{stored_at} AS stored_at", "p.source", "r.born_at", "r.producer_group",
    "r.transaction_id", "r.real_topic",
    "p.asked_queue_id", "p.reason", "r.keys", "r.tags", "r.properties", "r.body",
    "r.queue_id AS half_queue_id", "r.queue_offset AS half_queue_offset", "r.raw_headers",
    "{epoch} AS epoch",
)  # fmt: skip

_SAME_RECORD = "r.kind = p.source AND r.queue_id = p.queue_id AND r.queue_offset = p.queue_offset"


@dataclass(frozen=True)
class Applier:
    """Write one epoch.

    `due_since`: when the first of the messages that waited before the epoch was due, in ms.
    """

    lake: Lake
    plan: Plan
    batch: Batch
    topics: Mapping[str, str]  # kind -> Kafka topic
    due_since: int | None

    def _once(self, table: str, write: Callable[[], None]) -> None:
        if self.lake.holds(table, self.plan.epoch):
            self.lake.count(table, None)
            return
        write()

    def land(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start landing half and schedule records; it needs no decision."""
        counts = {kind: self.batch.rows(kind).num_rows for kind in (HALF, SCHEDULE)}
        return [
            pool.submit(self._once, kind, lambda kind=kind, rows=rows: self._land(kind, rows))  # type: ignore[misc]
            for kind, rows in counts.items()
            if rows
        ]

    def _land(self, kind: str, rows: int) -> None:
        if self.batch.records is None:
            landed = to_rows(self.batch.rows(kind), schemas.HALF, epoch=self.plan.epoch)
            self.append(kind, landed)
        else:
            self._land_by_spark(kind, self.batch.records, rows)

    def _land_by_spark(self, kind: str, records: DataFrame, rows: int) -> None:
        epoch = f"{self.plan.epoch}L AS epoch"
        columns = [epoch if name == "epoch" else name for name in schemas.HALF.names]
        self._write(kind, records.where(f"kind = '{kind}'").selectExpr(*columns), rows)

    def _write(self, table: str, rows: DataFrame, count: int) -> None:
        rows = rows.coalesce(1 if count <= _ROWS_PER_FILE else 2)
        if table == SCHEDULE:
            rows = rows.sortWithinPartitions(*order_of(table))
        (
            rows.write.format("delta")
            .mode("append")
            .option("userMetadata", f"txlake.epoch={self.plan.epoch}")
            .option("txnAppId", self.lake.app_id())
            .option("txnVersion", self.plan.epoch)
            .save(self.lake.table_path(table))
        )
        self.lake.count(table, None)

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

    def deliver(self, decision: Decision, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start writing messages into their topic tables, one append a topic."""
        topics = decision.state.topics
        table_ids = dict(
            zip(topics["topic"].to_pylist(), topics["table_id"].to_pylist(), strict=True)
        )
        placed: Mapping[str, pa.Table] = {
            topic: decision.placements.filter(pc.equal(decision.placements["topic"], topic))
            for topic in pc.unique(decision.placements["topic"]).to_pylist()
        }
        return [
            pool.submit(self._deliver, f"topics/{table_ids[topic]}", rows)
            for topic, rows in placed.items()
        ]

    def _deliver(self, table: str, placements: pa.Table) -> None:
        self._once(table, lambda: self._write_messages(table, placements))

    def _write_messages(self, table: str, placements: pa.Table) -> None:
        is_new = self._is_new(placements)
        new, old = placements.filter(is_new), placements.filter(pc.invert(is_new))
        messages = self._in_driver(new, old)
        if messages is None:
            self._write(table, self._by_spark(new, old), placements.num_rows)
        else:
            self.append(table, messages)

    def _is_new(self, placements: pa.Table) -> pa.Array:
        """Say of each message whether it is in this epoch's micro-batch, or was landed before."""
        is_new = pa.repeat(False, placements.num_rows)
        for r in self.plan.ranges:
            for kind in (HALF, SCHEDULE):
                if r.topic == self.topics[kind]:
                    there = pc.and_(
                        pc.equal(placements["source"], kind),
                        pc.equal(placements["queue_id"], r.partition),
                    )
                    here = pc.greater_equal(placements["queue_offset"], r.from_offset)
                    is_new = pc.or_(is_new, pc.and_(there, here))
        return is_new

    def _in_driver(self, new: pa.Table, old: pa.Table) -> pa.Table | None:
        """Put messages together in the driver; None when they are too large for it."""
        if self.batch.records is not None:
            return None
        parts = [
            self._placed(self.batch.rows(source), new.filter(pc.equal(new["source"], source)))
            for source in pc.unique(new["source"]).to_pylist()
        ]
        budget = DRIVER_BYTES_MAX
        for source in pc.unique(old["source"]).to_pylist():
            places = old.filter(pc.equal(old["source"], source))
            named = places.select(["queue_id", "queue_offset"])
            found = []
            columns = [f.name for f in schemas.HALF]
            due = self._due() if source == SCHEDULE else None
            recent = self.lake.recent if source == HALF else None
            for batch in read_messages(
                self.lake, source, named, columns, self.plan.epoch, due, self.lake.opened, recent
            ):
                budget -= batch.nbytes
                if budget < 0:
                    return None
                found.append(batch)
            if (lacking := places.num_rows - sum(batch.num_rows for batch in found)) > 0:
                raise LakeError(
                    f"epoch {self.plan.epoch} delivers {places.num_rows} messages that `{source}` "
                    f"has, but {lacking} of them are not there: run `txlake verify`"
                )
            parts.append(self._placed(pa.Table.from_batches(found), places))
        if len(parts) == 1:  # placements are in this order
            return parts[0]
        order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
        return pa.concat_tables(parts).sort_by(order)

    def _due(self) -> tuple[int, int] | None:
        """Say when what waited and is delivered now was due, all of it but resumed messages."""
        return None if self.due_since is None else (self.due_since, self.plan.epoch_at)

    def _placed(self, messages: pa.Table, places: pa.Table) -> pa.Table:
        """Give messages in their places, in the order of these. Output: TOPIC."""
        at = find(numbers(places), numbers(messages))
        if (at < 0).any():
            places, at = places.filter(pa.array(at >= 0)), at[at >= 0]
        taken = messages.take(pa.array(at))
        renamed = {
            "queue_id": places["real_queue_id"],
            "queue_offset": places["real_queue_offset"],
            "source": places["source"],
            "asked_queue_id": places["asked_queue_id"],
            "reason": places["reason"],
            "half_queue_id": places["queue_id"],
            "half_queue_offset": places["queue_offset"],
        }
        kept = [name for name in schemas.TOPIC.names if name in taken.column_names]
        frame = pa.table({**{name: taken[name] for name in kept}, **renamed})
        decided_at = instant(self.plan.epoch_at)
        return to_rows(frame, schemas.TOPIC, stored_at=decided_at, epoch=self.plan.epoch)

    def _by_spark(self, new: pa.Table, old: pa.Table) -> DataFrame:
        parts = [self._messages(self.batch.in_spark(), new)] if new.num_rows else []
        for source in pc.unique(old["source"]).to_pylist():
            rows = old.filter(pc.equal(old["source"], source))
            parts.append(self._messages(self._landed(source, rows), rows))
        messages = parts[0]
        for part in parts[1:]:
            messages = messages.unionByName(part)
        return messages

    def _landed(self, source: str, rows: pa.Table) -> DataFrame:
        """Give the older records of a source, by the touched ranges of its table."""
        ranges = run(
            "SELECT queue_id, min(queue_offset) AS low, max(queue_offset) AS high FROM rows"
            " GROUP BY queue_id",
            rows=rows,
        ).to_pylist()
        where = " OR ".join(
            f"(queue_id = {r['queue_id']} AND queue_offset BETWEEN {r['low']} AND {r['high']})"
            for r in ranges
        )
        spark = self.batch.spark
        landed = spark.read.format("delta").load(self.lake.table_path(source))
        return (
            landed.where(f"epoch < {self.plan.epoch}")
            .where(where)
            .selectExpr(f"'{source}' AS kind", *schemas.HALF.names)
        )

    def _messages(self, records: DataFrame, placements: pa.Table) -> DataFrame:
        """Join bodies to their places. The few narrow columns are broadcast, never a body."""
        from pyspark.sql.functions import expr

        spark = records.sparkSession
        places = spark.createDataFrame(placements.drop_columns(["topic", "real_topic"]))
        values = {
            "stored_at": f"timestamp_millis({self.plan.epoch_at}L)",
            "epoch": f"{self.plan.epoch}L",
        }
        return (
            records.alias("r")
            .join(
                places.hint("broadcast").alias("p"),
                on=expr(_SAME_RECORD),
                how="inner",
            )
            .selectExpr(*(column.format(**values) for column in _TOPIC_ROW))
        )
