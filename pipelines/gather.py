"""Gather what an epoch decides on: its records, decoded, and what they name of earlier epochs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker import lookups
from checker.columns import places
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
from pipelines.arrow_batches import arrow_batches
from storage.epochs import Plan, Range
from storage.kafka_arrow import KAFKA_COLUMNS, RECORDS, decode_rows
from storage.kafka_rows import ADMIN, HALF, OP, SCHEDULE, WireLimits, decode
from storage.lake import Lake
from storage.messages import touched_ranges
from storage.rows import to_frame, to_rows
from storage.schemas import spark_schema
from txlake.protocol import UNDELIVERABLE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# An epoch's messages come to the driver whole while they fit into this; else their bodies stay in
# Spark, which decodes and writes them in parallel and outside the driver's memory.
DRIVER_BYTES_MAX = 256 * 1024 * 1024

_OFFSET_ORDER = [("queue_id", "ascending"), ("queue_offset", "ascending")]
_HEAVY = ("body", "properties", "raw_headers")
_ROWS_AT_ONCE = 4_096
_ROWS_DECODED_AT_ONCE = 16_384


@dataclass
class Batch:
    """An epoch's records, by kind, in the driver.

    `records` is None when they are whole. Else the messages among them lack what is heavy (bodies,
    properties, raw headers), and `records` has all of it in Spark, decoded and persisted.
    """

    spark: SparkSession
    by_kind: dict[str, pa.Table]
    records: DataFrame | None = None

    def close(self) -> None:
        """Give the persisted records back."""
        if self.records is not None:
            self.records.unpersist()

    def add(self, kind: str, rows: list[dict[str, Any]]) -> None:
        """Add rows that the micro-batch did not bring."""
        if rows:
            self.add_table(
                pa.Table.from_pylist([{**row, "kind": kind} for row in rows], schema=RECORDS), kind
            )

    def add_table(self, rows: pa.Table, kind: str) -> None:
        """Add rows of one kind. Input: RECORDS."""
        self.by_kind[kind] = pa.concat_tables([self.rows(kind), rows]).sort_by(_OFFSET_ORDER)

    def rows(self, kind: str) -> pa.Table:
        """Give the rows of one kind, in offset order. Output: RECORDS."""
        return self.by_kind.get(kind, RECORDS.empty_table())

    def in_spark(self) -> DataFrame:
        """Give all records, with their bodies, as a Spark frame."""
        if self.records is not None:
            return self.records
        return self.spark.createDataFrame(pa.concat_tables([self.rows(HALF), self.rows(SCHEDULE)]))


def read_batch(records: DataFrame, record_count: int, limits: WireLimits) -> Batch:
    """Bring a micro-batch to the driver, whole if it is small enough, and decode it.

    Input: what Spark's Kafka source gives; how many records there are at most.
    The caller closes the batch.
    """
    is_heavy = _is_heavy(_BYTES_IN_KAFKA, record_count, topics=limits.topics)
    heavy = ("value", "headers")
    columns = [f"CASE WHEN NOT ({is_heavy}) THEN {name} END AS {name}" if name in heavy else name
               for name in KAFKA_COLUMNS]  # fmt: skip
    rows = records.where("topic IS NOT NULL").selectExpr(*columns, f"{is_heavy} AS is_heavy")
    parts: list[pa.Table] = []
    found_heavy = False
    for part in _portions(arrow_batches(rows)):
        found_heavy = found_heavy or pc.any(part["is_heavy"]).as_py()
        if not found_heavy:
            parts.append(decode_rows(part, limits))
    if found_heavy:
        return _in_spark(decode(records, limits), record_count)
    return Batch(records.sparkSession, _by_kind(parts))


def _portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together that are too small to be decoded each for itself."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(batch.num_rows for batch in waiting) >= _ROWS_DECODED_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _is_heavy(record_bytes: str, record_count: int, topics: Mapping[str, str] | None = None) -> str:
    """Give the SQL condition that a message is too large for so many to come to the driver."""
    cap = DRIVER_BYTES_MAX // max(1, record_count)
    # A power of two: Spark compiles the plan again for every number that stands in it.
    cap = 1 << (cap.bit_length() - 1) if cap else 0
    if topics is None:
        return f"kind IN ('{HALF}', '{SCHEDULE}') AND {record_bytes} > {cap}"
    return f"topic IN ('{topics[HALF]}', '{topics[SCHEDULE]}') AND {record_bytes} > {cap}"


_BYTES_IN_KAFKA = (
    "octet_length(coalesce(value, X'')) + octet_length(array_join(coalesce(headers.key,"
    " array()), '')) + octet_length(array_join(coalesce(cast(headers.value AS array<string>),"
    " array()), ''))"
)
# A table does not say how large a record was; its body is what may be large.
_BYTES_IN_TABLE = "octet_length(coalesce(body, X'')) AS record_bytes"


def _in_spark(decoded: DataFrame, record_count: int) -> Batch:
    """Keep a decoded micro-batch in Spark; what is not heavy in it comes to the driver."""
    is_heavy = _is_heavy("record_bytes", record_count)
    columns = [
        f"CASE WHEN NOT ({is_heavy}) THEN {name} END AS {name}" if name in _HEAVY else name
        for name in RECORDS.names
    ]
    rows = decoded.selectExpr(*columns).toArrow()
    rows = pa.table([rows[f.name].cast(f.type) for f in RECORDS], schema=RECORDS)
    return Batch(decoded.sparkSession, _by_kind([rows]), decoded.persist())


def _by_kind(parts: Iterable[pa.Table]) -> dict[str, pa.Table]:
    """Give rows by kind, in offset order. Most parts are pieces of one partition, in order."""
    found: dict[str, list[pa.Table]] = {}
    for part in parts:
        kinds = pc.unique(part["kind"]).to_pylist()
        for kind in kinds:
            rows = part if len(kinds) == 1 else part.filter(pc.equal(part["kind"], kind))
            found.setdefault(kind, []).append(rows)
    return {kind: _in_offset_order(pieces) for kind, pieces in found.items()}


def _in_offset_order(pieces: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(sorted(pieces, key=lambda piece: int(places(piece)[0])))
    rows = rows.combine_chunks()
    if (np.diff(places(rows)) > 0).all():
        return rows
    return rows.take(pa.array(np.argsort(places(rows), kind="stable")))


def read_again(
    spark: SparkSession,
    lake: Lake,
    plan: Plan,
    held: Sequence[str],
    limits: WireLimits,
    kafka_options: Mapping[str, str],
) -> Batch:
    """Read a plan's records again.

    Input: the kinds whose table holds the epoch already; those come from there, all else from
    Kafka.
    """
    missing = {topic for kind, topic in limits.topics.items() if kind not in held}
    ranges = tuple(r for r in plan.ranges if r.topic in missing and r.to_offset > r.from_offset)
    record_count = sum(r.to_offset - r.from_offset for r in plan.ranges)
    records = kafka_records(spark, ranges, kafka_options) if ranges else None
    batch = read_batch(records, record_count, limits) if records is not None else Batch(spark, {})
    if batch.records is None:
        landed = _landed(lake, held, plan.epoch)
        if landed is not None:
            for kind, rows in landed.items():
                batch.add_table(rows, kind)
            return batch
    batch.close()
    parts = [
        spark.read.format("delta").load(lake.table_path(kind)).where(f"epoch = {plan.epoch}")
        .drop("epoch", "result").selectExpr(f"'{kind}' AS kind", "*", _BYTES_IN_TABLE)
        for kind in held
    ]  # fmt: skip
    if records is not None:
        parts.append(decode(records, limits))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)
    absent = [f"cast(NULL AS {_type(name)}) AS {name}" for name in RECORDS.names
              if name not in whole.columns]  # fmt: skip
    return _in_spark(whole.selectExpr("*", *absent), record_count)


def _landed(lake: Lake, kinds: Sequence[str], epoch: int) -> dict[str, pa.Table] | None:
    """Read what tables hold of an epoch; None when it is too large for the driver."""
    found, budget = {}, DRIVER_BYTES_MAX
    for kind in kinds:
        batches = []
        for batch in lake.dataset(kind).to_batches(
            filter=pc.field("epoch") == epoch, batch_size=_ROWS_AT_ONCE
        ):
            budget -= batch.nbytes
            if budget < 0:
                return None
            batches.append(batch)
        rows = pa.Table.from_batches(batches) if batches else lake.schema(kind).empty_table()
        found[kind] = to_rows(rows, RECORDS, kind=kind)
    return found


def _type(name: str) -> str:
    return spark_schema(pa.schema([RECORDS.field(name)]))[0].dataType.simpleString()


def empty_batch(spark: SparkSession) -> Batch:
    """Give the batch of an epoch that lands nothing; no Spark job is run."""
    return Batch(spark, {})


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
    admin = batch.rows(ADMIN)
    commands = admin.rename_columns(
        ["admin_offset" if name == "queue_offset" else name for name in admin.column_names]
    )
    inputs = Inputs(
        halves=to_frame(batch.rows(HALF), NEW_HALVES),
        operations=_operations(batch.rows(OP)),
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


def _operations(rows: pa.Table) -> pa.Table:
    """Give op records as the decision takes them; `cause` as CAUSE_SQL says. Output: OPERATIONS."""
    is_answer = pc.fill_null(rows["from_check"], False)
    cause = pc.if_else(
        rows["actor"].is_valid(), "operator", pc.if_else(is_answer, "check_answer", "operation")
    )
    named = rows.rename_columns(
        ["op_queue_offset" if name == "queue_offset" else name for name in rows.column_names]
    )
    return to_frame(named.append_column("cause", cause), OPERATIONS)


def ended_halves(lake: Lake, named: pa.Table, epoch: int) -> pa.Table:
    """Look up named halves of earlier epochs that are not state. Output: ENDED."""
    if named.num_rows == 0:
        return ENDED.empty_table()
    found = _ended(lake, touched_ranges(named), epoch)
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
        before & touched_ranges(halves) & (pc.field("outcome") != "DISCARDED"),
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
