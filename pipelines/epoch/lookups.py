"""The input of a decision: its records as frames, and the rows of earlier epochs that they name."""

from __future__ import annotations

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
from storage.files.messages import offset_filter
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.rows import to_frame
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from txlake.protocol import UNDELIVERABLE_TOPIC, UndeliverableTarget, read_target

_HALF_ENDS = pa.schema([("queue_id", pa.int32()), ("half_end", pa.int64()), ("floor", pa.int64())])


def build_inputs(batch: Batch, lake: Lake, state: State, plan: Plan, limits: WireLimits) -> Inputs:
    """Returns a batch as the decision's input, with the earlier halves that it names.

    Reads only rows of epochs before the plan's, and of halves only what is there: all else can be
    deleted at any time, and decides nothing.
    """
    commands = batch.rows(ADMIN).rename_columns({"queue_offset": "admin_offset"})
    inputs = Inputs(
        halves=to_frame(batch.rows(HALF), NEW_HALVES),
        operations=to_operations(batch.rows(OP)),
        schedules=to_frame(batch.rows(SCHEDULE), NEW_SCHEDULES),
        commands=to_frame(commands, COMMANDS),
    )
    half_ends = pa.Table.from_pylist(
        [{"queue_id": r.partition, "half_end": r.from_offset,
          "floor": plan.floor.offsets.get(r.partition)}
         for r in plan.ranges if r.topic == limits.topics[HALF]],
        schema=_HALF_ENDS,
    )  # fmt: skip
    named = lookups.halves_to_look_up(state, inputs, half_ends)
    ended = find_ended_halves(lake, named, plan.epoch)
    set_ids = lookups.sets_to_look_up(state, inputs, half_ends, ended)
    if set_ids:
        of_sets = _ended_halves(lake, pc.field("transaction_id").isin(set_ids), plan.epoch)
        of_sets = filter_rows(of_sets, is_there(of_sets, state, half_ends))  # others may be deleted
        ended = run(
            "SELECT * FROM a UNION SELECT * FROM b WHERE tran_size IS NOT NULL",
            a=ended,
            b=of_sets,
        ).cast(ENDED)
    return Inputs(
        halves=inputs.halves,
        operations=inputs.operations,
        schedules=inputs.schedules,
        commands=inputs.commands,
        ended=ended,
        undeliverable=find_undeliverable(lake, inputs.commands, state.topics, plan.epoch),
    )


def to_operations(rows: pa.Table) -> pa.Table:
    """Returns rows of `op` as the decision takes them, each with its cause. Output: OPERATIONS."""
    is_answer = pc.fill_null(rows["from_check"], False)
    cause = pc.if_else(
        rows["actor"].is_valid(), "operator", pc.if_else(is_answer, "check_answer", "operation")
    )
    named = rows.rename_columns({"queue_offset": "op_queue_offset"})
    return to_frame(named.append_column("cause", cause), OPERATIONS)


def find_ended_halves(lake: Lake, named: pa.Table, epoch: int) -> pa.Table:
    """Returns the named halves of earlier epochs that are not state. Output: ENDED."""
    if named.num_rows == 0:
        return ENDED.empty_table()
    found = _ended_halves(lake, offset_filter(named), epoch)
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
  epoch_ms(h.stored_at) AS stored_at, h.immunity_ms,
  CASE WHEN h.error IS NOT NULL THEN 'UNREADABLE' ELSE o.outcome END AS status,
  o.cause, o.op_queue_offset, coalesce(o.arm, 0)::INTEGER AS arm
FROM halves h
LEFT JOIN outcomes o ON h.queue_id = o.queue_id AND h.queue_offset = o.queue_offset
WHERE h.error IS NOT NULL OR o.outcome IS NOT NULL
"""


def _ended_halves(lake: Lake, where: pc.Expression, epoch: int) -> pa.Table:
    before = pc.field("epoch") < epoch
    columns = [
        "queue_id", "queue_offset", "producer_group", "transaction_id", "tran_size", "tran_seq",
        "stored_at", "immunity_ms", "error",
    ]  # fmt: skip
    halves = lake.read("half", columns, before & where)
    if halves.num_rows == 0:
        return ENDED.empty_table()
    outcomes = lake.read(
        "outcomes",
        ["queue_id", "queue_offset", "arm", "outcome", "cause", "op_queue_offset"],
        before & offset_filter(halves) & (pc.field("outcome") != "DISCARDED"),
    )
    return run(_ENDED, halves=halves, outcomes=outcomes).cast(ENDED)


def find_undeliverable(lake: Lake, commands: pa.Table, catalog: pa.Table, epoch: int) -> pa.Table:
    """Returns the messages of TRANS_UNDELIVERABLE_TOPIC that RESUME names, if not delivered since.

    Input: COMMANDS; TOPICS as they were before the epoch. Output: UNDELIVERABLE.
    """
    targets = map(read_target, commands["target"].to_pylist())
    named = [t.queue_offset for t in targets if isinstance(t, UndeliverableTarget)]
    topics = {row["topic"]: row["table_id"] for row in catalog.to_pylist()}
    if not named or UNDELIVERABLE_TOPIC not in topics:
        return UNDELIVERABLE.empty_table()
    before = pc.field("epoch") < epoch
    rows = lake.read(
        f"topics/{topics[UNDELIVERABLE_TOPIC]}",
        ["queue_offset", "source", "half_queue_id", "half_queue_offset", "real_topic",
         "asked_queue_id", "producer_group"],
        before & pc.field("queue_offset").isin(named),
    )  # fmt: skip
    if rows.num_rows == 0:
        return UNDELIVERABLE.empty_table()
    key = {"half_queue_id": "queue_id", "half_queue_offset": "queue_offset"}
    delivered = lake.read(
        "deliveries",
        ["source", "queue_id", "queue_offset"],
        before
        & (pc.field("action") == "DELIVERED")
        & offset_filter(rows.select(list(key)).rename_columns(key)),
    )
    return run(
        """
        SELECT r.queue_offset AS undeliverable_offset, r.source, r.half_queue_id AS queue_id,
          r.half_queue_offset AS queue_offset, r.real_topic, r.asked_queue_id AS real_queue_id,
          r.producer_group
        FROM rows r ANTI JOIN delivered d ON r.source = d.source
          AND r.half_queue_id = d.queue_id AND r.half_queue_offset = d.queue_offset
        """,
        rows=rows,
        delivered=delivered,
    ).cast(UNDELIVERABLE)
