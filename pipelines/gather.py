"""Gather what an epoch decides on: its records, decoded, and what they name of earlier epochs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checker import lookups
from checker.frames import (
    COMMANDS,
    ENDED,
    NEW_HALVES,
    NEW_SCHEDULES,
    OPERATIONS,
    UNDELIVERABLE,
    Inputs,
    State,
)
from checker.sql import run
from pipelines.restore import CAUSE_SQL
from storage import schemas
from storage.epochs import Plan, Range
from storage.kafka_rows import ADMIN, HALF, OP, SCHEDULE, WireLimits, decode
from storage.lake import Lake
from storage.rows import to_frame
from storage.schemas import spark_schema
from txlake.protocol import UNDELIVERABLE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What the driver needs of a record: no body or property of a message, all of an operation.
_NARROW = (
    "kind", "queue_id", "queue_offset", "stored_at", "producer_group", "transaction_id",
    "real_topic", "real_queue_id", "delay_level", "deliver_at", "immunity_ms", "tran_size",
    "tran_seq", "decision", "half_offsets", "transaction_ids", "from_check", "check_id", "remark",
    "actor", "reason", "command", "target", "error",
    "CASE WHEN kind IN ('op', 'admin') THEN body END AS body",
    "CASE WHEN kind IN ('op', 'admin') THEN raw_key END AS raw_key",
    "CASE WHEN kind IN ('op', 'admin') THEN raw_headers END AS raw_headers",
)  # fmt: skip

NARROW = pa.schema(
    [
        next(
            schema.field(name)
            for schema in (schemas.HALF, schemas.OP, schemas.ADMIN)
            if name in schema.names
        )
        for name in (column.split(" AS ")[-1] for column in _NARROW[1:])
    ]
).insert(0, pa.field("kind", pa.string()))


@dataclass
class Batch:
    """An epoch's records: `records` in Spark with their bodies, `narrow` in the driver without.

    `records` is None for an epoch that only time asked for.
    """

    spark: SparkSession
    records: DataFrame | None
    narrow: pa.Table

    def close(self) -> None:
        """Give the persisted records back."""
        if self.records is not None:
            self.records.unpersist()

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add narrow rows that the micro-batch did not bring."""
        if rows:
            added = pa.Table.from_pylist(rows, schema=self.narrow.schema)
            self.narrow = pa.concat_tables([self.narrow, added])

    def rows(self, kind: str) -> pa.Table:
        """Give the narrow rows of one kind, in offset order."""
        rows = self.narrow.filter(pc.equal(self.narrow["kind"], kind))
        return rows.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])


def read_again(
    spark: SparkSession,
    ranges: tuple[Range, ...],
    limits: WireLimits,
    kafka_options: Mapping[str, str],
    landed: Mapping[str, DataFrame],
) -> Batch:
    """Read recorded ranges again.

    Input: `landed` has, by kind, the rows that a table holds already; `ranges` are of the other
    kinds, and come from Kafka.
    """
    parts = [
        rows.drop("epoch", "result").selectExpr(f"'{kind}' AS kind", "*")
        for kind, rows in landed.items()
    ]
    ranges = tuple(r for r in ranges if r.to_offset > r.from_offset)
    if ranges:
        records = kafka_records(spark, ranges, kafka_options)
        parts.append(decode(records, limits).where(_within(ranges, limits)))
    if not parts:
        return empty_batch(spark)
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)
    missing = [f"cast(NULL AS {_type(name)}) AS {name}" for name in _WIDE
               if name not in whole.columns]  # fmt: skip
    return read_batch(whole.selectExpr("*", *missing))


_WIDE = {
    field.name: field
    for schema in (schemas.HALF, schemas.OP, schemas.ADMIN)
    for field in schema
    if field.name not in ("epoch", "result")
}


def _type(name: str) -> str:
    return spark_schema(pa.schema([_WIDE[name]]))[0].dataType.simpleString()


def read_batch(decoded: DataFrame) -> Batch:
    """Read a decoded micro-batch once and bring its narrow columns to the driver.

    `Batch.records` stays persisted, since several actions read it: the caller closes the batch.
    """
    decoded = decoded.persist()
    try:
        return Batch(decoded.sparkSession, decoded, decoded.selectExpr(*_NARROW).toArrow())
    except BaseException:
        decoded.unpersist()
        raise


def empty_batch(spark: SparkSession) -> Batch:
    """Give the batch of an epoch that lands nothing; no Spark job is run."""
    return Batch(spark, None, NARROW.empty_table())


def _within(ranges: tuple[Range, ...], limits: WireLimits) -> str:
    """Keep exactly the planned ranges: rows that were landed before are dropped."""
    kinds = {topic: kind for kind, topic in limits.topics.items()}
    kept = [
        f"(kind = '{kinds[r.topic]}' AND queue_id = {r.partition}"
        f" AND queue_offset >= {r.from_offset} AND queue_offset < {r.to_offset})"
        for r in ranges
        if r.to_offset > r.from_offset
    ]
    return " OR ".join(kept) or "false"


def kafka_records(
    spark: SparkSession, ranges: tuple[Range, ...], options: Mapping[str, str]
) -> DataFrame:
    """Read recorded ranges again from Kafka, as one batch; partitions made since are left out."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for r in ranges:
        starts.setdefault(r.topic, {})[str(r.partition)] = r.from_offset
        ends.setdefault(r.topic, {})[str(r.partition)] = r.to_offset
    partitions = {topic: [int(n) for n in offsets] for topic, offsets in starts.items()}
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("includeHeaders", "true")
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def inputs_of(batch: Batch, lake: Lake, state: State, plan: Plan, limits: WireLimits) -> Inputs:
    """Turn a batch into the decision's input, with the earlier halves that it names.

    Reads of the lake only rows of epochs before the plan's.
    """
    operations = run(
        f"""
        SELECT queue_id, queue_offset AS op_queue_offset, stored_at, producer_group, decision,
          half_offsets, transaction_ids, {CAUSE_SQL} AS cause, error
        FROM rows
        """,
        rows=_ms(batch.rows(OP)),
    ).cast(OPERATIONS)
    admin = batch.rows(ADMIN)
    commands = admin.rename_columns(
        ["admin_offset" if name == "queue_offset" else name for name in admin.column_names]
    )
    inputs = Inputs(
        halves=to_frame(batch.rows(HALF), NEW_HALVES),
        operations=operations,
        schedules=to_frame(batch.rows(SCHEDULE), NEW_SCHEDULES),
        commands=to_frame(commands, COMMANDS),
    )
    before = {r.partition: r.from_offset for r in plan.ranges if r.topic == limits.topics[HALF]}
    half_ends = pa.table(
        [pa.array(before.keys(), pa.int32()), pa.array(before.values(), pa.int64())],
        names=["queue_id", "half_end"],
    )
    named = lookups.halves_to_look_up(state, inputs, half_ends)
    ended = ended_halves(lake, named, plan.epoch)
    set_ids = lookups.sets_to_look_up(state, inputs, ended)
    if set_ids:
        of_sets = _ended(lake, pc.field("transaction_id").isin(set_ids), plan.epoch)
        ended = run(
            "SELECT * FROM a UNION SELECT * FROM b WHERE tran_size > 1", a=ended, b=of_sets
        ).cast(ENDED)
    return Inputs(
        halves=inputs.halves,
        operations=inputs.operations,
        schedules=inputs.schedules,
        commands=inputs.commands,
        ended=ended,
        undeliverable=undeliverable_named(lake, inputs.commands, state, plan.epoch),
    )


def _ms(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("stored_at")
    stored_at = rows["stored_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    return rows.set_column(place, "stored_at", stored_at)


def coordinates(named: pa.Table) -> pc.Expression:
    """Give a filter that holds at least the named half coordinates, by range of each queue."""
    ranges = run(
        "SELECT queue_id, min(queue_offset) AS low, max(queue_offset) AS high FROM named"
        " GROUP BY queue_id",
        named=named,
    ).to_pylist()
    where = pc.scalar(False)
    for r in ranges:
        where = where | (
            (pc.field("queue_id") == r["queue_id"])
            & (pc.field("queue_offset") >= r["low"])
            & (pc.field("queue_offset") <= r["high"])
        )
    return where


def ended_halves(lake: Lake, named: pa.Table, epoch: int) -> pa.Table:
    """Look up named halves of earlier epochs that are not state. Output: ENDED."""
    if named.num_rows == 0:
        return ENDED.empty_table()
    found = _ended(lake, coordinates(named), epoch)
    return run(
        """
        SELECT f.* FROM found f SEMI JOIN named n
          ON f.queue_id = n.queue_id AND f.queue_offset = n.queue_offset
        """,
        found=found,
        named=named,
    ).cast(ENDED)


_ENDED = """
SELECT h.queue_id, h.queue_offset, h.producer_group, h.transaction_id, h.tran_size, h.tran_seq,
  CASE WHEN h.error IS NOT NULL THEN 'UNREADABLE' ELSE o.outcome END AS status,
  o.cause, o.op_queue_offset, coalesce(o.arm, 0)::INTEGER AS arm
FROM halves h
LEFT JOIN outcomes o ON h.queue_id = o.queue_id AND h.queue_offset = o.queue_offset
WHERE h.error IS NOT NULL OR o.outcome IS NOT NULL
"""


def _ended(lake: Lake, where: pc.Expression, epoch: int) -> pa.Table:
    before = pc.field("epoch") < epoch
    columns = [
        "queue_id", "queue_offset", "producer_group", "transaction_id", "tran_size", "tran_seq",
        "error",
    ]  # fmt: skip
    halves = lake.read("half", columns, before & where)
    if halves.num_rows == 0:
        return ENDED.empty_table()
    outcomes = lake.read(
        "outcomes",
        ["queue_id", "queue_offset", "arm", "outcome", "cause", "op_queue_offset"],
        before & coordinates(halves) & (pc.field("outcome") != "DISCARDED"),
    )
    return run(_ENDED, halves=halves, outcomes=outcomes).cast(ENDED)


def undeliverable_named(lake: Lake, commands: pa.Table, state: State, epoch: int) -> pa.Table:
    """Look up what RESUME commands name in TRANS_UNDELIVERABLE_TOPIC and was not delivered yet."""
    targets = [text or "" for text in commands["target"].to_pylist()]
    prefix = "undeliverable:"
    named = [
        int(text[len(prefix) :])
        for text in targets
        if text.startswith(prefix) and text[len(prefix) :].isascii()
        and text[len(prefix) :].isdigit() and len(text) < len(prefix) + 19
    ]  # fmt: skip
    topics = dict(
        zip(state.topics["topic"].to_pylist(), state.topics["table_id"].to_pylist(), strict=True)
    )
    if not named or UNDELIVERABLE_TOPIC not in topics:
        return UNDELIVERABLE.empty_table()
    before = pc.field("epoch") < epoch
    rows = lake.read(
        f"topics/{topics[UNDELIVERABLE_TOPIC]}",
        ["queue_offset", "source", "half_queue_id", "half_queue_offset", "real_topic",
         "asked_queue_id"],
        before & pc.field("queue_offset").isin(named),
    )  # fmt: skip
    delivered = lake.read(
        "deliveries",
        ["source", "queue_id", "queue_offset"],
        before & (pc.field("action") == "DELIVERED"),
    )
    return run(
        """
        SELECT r.queue_offset AS undeliverable_offset, r.source, r.half_queue_id AS queue_id,
          r.half_queue_offset AS queue_offset, r.real_topic, r.asked_queue_id AS real_queue_id
        FROM rows r ANTI JOIN delivered d ON r.source = d.source
          AND r.half_queue_id = d.queue_id AND r.half_queue_offset = d.queue_offset
        """,
        rows=rows,
        delivered=delivered,
    ).cast(UNDELIVERABLE)
