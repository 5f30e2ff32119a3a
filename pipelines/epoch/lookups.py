"""The inputs of a decision: an epoch's records, and the rows of earlier epochs that they name."""

from __future__ import annotations

from dataclasses import replace

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
from checker.frames_ops.columns import filter_rows
from checker.frames_ops.sql import run
from checker.rules.presence import is_there
from pipelines.epoch.batch import Batch
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.rows import to_frame
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from txlake.protocol import UNDELIVERABLE_TOPIC, UndeliverableTarget, read_target

_HALF_ENDS = pa.schema([("queue_id", pa.int32()), ("half_end", pa.int64()), ("floor", pa.int64())])
_HALF_COLUMNS = [
    "queue_id",
    "queue_offset",
    "producer_group",
    "transaction_id",
    "tran_size",
    "tran_seq",
    "stored_at",
    "immunity_ms",
    "error",
]
_OUTCOME_COLUMNS = ["queue_id", "queue_offset", "arm", "outcome", "cause", "op_queue_offset"]
_UNDELIVERABLE_COLUMNS = [
    "queue_offset",
    "source",
    "half_queue_id",
    "half_queue_offset",
    "real_topic",
    "asked_queue_id",
    "producer_group",
]


def build_inputs(batch: Batch, lake: Lake, state: State, plan: Plan, limits: WireLimits) -> Inputs:
    """Returns a batch as the decision's inputs, with the earlier halves that it names.

    Reads only rows of epochs before the plan's, and only halves that are present: all others can be
    deleted at any time, and decide nothing.
    """
    commands = batch.rows(ADMIN).rename_columns({"queue_offset": "admin_offset"})
    inputs = Inputs(
        halves=to_frame(batch.rows(HALF), NEW_HALVES),
        operations=to_operations(batch.rows(OP)),
        schedules=to_frame(batch.rows(SCHEDULE), NEW_SCHEDULES),
        commands=to_frame(commands, COMMANDS),
    )

    half_ends = _half_ends(plan, limits.topics[HALF])
    named_halves = lookups.halves_to_look_up(state, inputs, half_ends)
    ended = find_ended_halves(lake, named_halves, plan.epoch)

    set_ids = lookups.sets_to_look_up(state, inputs, half_ends, ended)
    if set_ids:
        is_of_set = pc.field("transaction_id").isin(set_ids)
        halves = lake.read("half", _HALF_COLUMNS, (pc.field("epoch") < plan.epoch) & is_of_set)
        of_sets = _with_ends(lake, halves, plan.epoch)
        of_sets = filter_rows(of_sets, is_there(of_sets, state, half_ends))  # others may be deleted
        ended = run(
            "SELECT * FROM a UNION SELECT * FROM b WHERE tran_size IS NOT NULL",
            a=ended,
            b=of_sets,
        ).cast(ENDED)

    undeliverable = find_undeliverable(lake, inputs.commands, state.topics, plan.epoch)
    return replace(inputs, ended=ended, undeliverable=undeliverable)


def _half_ends(plan: Plan, half_topic: str) -> pa.Table:
    """Returns of each half queue where the epoch begins, and the floor. Output: _HALF_ENDS."""
    floor = plan.floor.offsets
    rows = [
        {"queue_id": r.partition, "half_end": r.from_offset, "floor": floor.get(r.partition)}
        for r in plan.ranges
        if r.topic == half_topic
    ]
    return pa.Table.from_pylist(rows, schema=_HALF_ENDS)


def to_operations(rows: pa.Table) -> pa.Table:
    """Returns rows of `op` as the decision takes them, each with its cause. Output: OPERATIONS."""
    is_answer = pc.fill_null(rows["from_check"], False)
    cause = pc.if_else(
        rows["actor"].is_valid(), "operator", pc.if_else(is_answer, "check_answer", "operation")
    )
    operations = rows.rename_columns({"queue_offset": "op_queue_offset"})
    return to_frame(operations.append_column("cause", cause), OPERATIONS)


def find_ended_halves(lake: Lake, named: pa.Table, epoch: int) -> pa.Table:
    """Returns the named halves of earlier epochs that are not state. Output: ENDED."""
    if named.num_rows == 0:
        return ENDED.empty_table()

    return _with_ends(lake, lake.read_named("half", named, _HALF_COLUMNS, epoch), epoch)


_ENDED = """
SELECT h.queue_id, h.queue_offset, h.producer_group, h.transaction_id, h.tran_size, h.tran_seq,
  epoch_ms(h.stored_at) AS stored_at, h.immunity_ms,
  CASE WHEN h.error IS NOT NULL THEN 'UNREADABLE' ELSE o.outcome END AS status,
  o.cause, o.op_queue_offset, coalesce(o.arm, 0)::INTEGER AS arm
FROM halves h
LEFT JOIN outcomes o ON h.queue_id = o.queue_id AND h.queue_offset = o.queue_offset
  AND o.outcome <> 'DISCARDED'
WHERE h.error IS NOT NULL OR o.outcome IS NOT NULL
"""


def _with_ends(lake: Lake, halves: pa.Table, epoch: int) -> pa.Table:
    """Returns those of earlier halves that have ended, or that cannot be read. Output: ENDED."""
    if halves.num_rows == 0:
        return ENDED.empty_table()

    outcomes = lake.read_named("outcomes", halves, _OUTCOME_COLUMNS, epoch)
    return run(_ENDED, halves=halves, outcomes=outcomes).cast(ENDED)


def find_undeliverable(lake: Lake, commands: pa.Table, catalog: pa.Table, epoch: int) -> pa.Table:
    """Returns the messages of TRANS_UNDELIVERABLE_TOPIC that RESUME names, if not delivered since.

    Input: COMMANDS; TOPICS as they were before the epoch. Output: UNDELIVERABLE.
    """
    targets = map(read_target, commands["target"].to_pylist())
    offsets = [t.queue_offset for t in targets if isinstance(t, UndeliverableTarget)]
    topics = {row["topic"]: row["table_id"] for row in catalog.to_pylist()}
    if not offsets or UNDELIVERABLE_TOPIC not in topics:
        return UNDELIVERABLE.empty_table()

    is_earlier = pc.field("epoch") < epoch
    rows = lake.read(
        f"topics/{topics[UNDELIVERABLE_TOPIC]}",
        _UNDELIVERABLE_COLUMNS,
        is_earlier & pc.field("queue_offset").isin(offsets),
    )
    if rows.num_rows == 0:
        return UNDELIVERABLE.empty_table()

    key = {"half_queue_id": "queue_id", "half_queue_offset": "queue_offset"}
    halves = rows.select(list(key)).rename_columns(key)
    delivered = lake.read_named(
        "deliveries", halves, ["source", "queue_id", "queue_offset", "action"], epoch
    )

    return run(
        """
        SELECT r.queue_offset AS undeliverable_offset, r.source, r.half_queue_id AS queue_id,
          r.half_queue_offset AS queue_offset, r.real_topic, r.asked_queue_id AS real_queue_id,
          r.producer_group
        FROM rows r ANTI JOIN delivered d ON r.source = d.source
          AND r.half_queue_id = d.queue_id AND r.half_queue_offset = d.queue_offset
          AND d.action = 'DELIVERED'
        """,
        rows=rows,
        delivered=delivered,
    ).cast(UNDELIVERABLE)
