"""An operator's record, and the result that the rules would give if the job landed it now.

The decision is the job's own (`checker.decide`), over the state of one unit; `known_at` is left
out, so that time alone does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from checker.decide import decide
from checker.frames import (
    COMMANDS,
    DELAYED,
    ENDED,
    HALVES,
    NAMINGS,
    QUEUES,
    Decision,
    Inputs,
    Instants,
    State,
)
from pipelines import output
from pipelines.epoch.lookups import find_undeliverable, to_operations
from pipelines.epoch.parameters import plan_parameters
from pipelines.epoch.signatures import with_verification
from pipelines.errors import OperatorError
from pipelines.explain import rule_texts
from pipelines.explain.report import nothing_found
from pipelines.explain.rows import LakeRows, Row, latest_committed
from pipelines.explain.target_rows import TargetRows
from pipelines.explain.units import Unit, units_of
from pipelines.health.dead_letters import require_undeliverable
from pipelines.operate.records import Record, command, operation
from pipelines.settings import SecuritySettings
from storage import schemas
from storage.lake.lake import Lake
from storage.rows import instant
from storage.wire.record_kinds import HALF
from txlake.protocol import RecordTarget, Target, UndeliverableTarget

STILL_UNDELIVERABLE: Final = "still_undeliverable"


@dataclass(frozen=True)
class Preview:
    """A record to write, and its effect on the lake as of `epoch`.

    `cluster_id`: of the Kafka that the lake is made from; empty when there is no epoch yet.
    """

    record: Record
    expected: str
    epoch: int
    cluster_id: str


def preview_end(
    lake: Lake,
    half: RecordTarget,
    decision: str,
    actor: str,
    reason: str,
    security: SecuritySettings | None = None,
    target_rows: TargetRows | None = None,
) -> Preview:
    """Returns the preview of a COMMIT or a ROLLBACK: its outcome, a conflict, or that it waits.

    Input: `security`: the keys of the job's settings, as far as they are known here;
    `target_rows`: the rows about several targets, if they were read together.
    Errors: OperatorError when the lake has no such half, or it cannot be read.
    """
    target_rows = target_rows or TargetRows(lake)
    lake_rows = _find(lake, half, target_rows)
    (unit,) = units_of(lake_rows)
    if unit.error is not None:
        raise OperatorError(
            f"{half} cannot be read ({unit.error}): no operation can end it, nothing was written"
        )

    (stored,) = [m for m in unit.messages if m["queue_offset"] == half.queue_offset]
    record = operation(stored, decision, actor, reason)
    op_offset = 1 + max((op["queue_offset"] for op in lake_rows.operations), default=0)
    now_ms = time.time_ns() // 1_000_000
    row = {
        "queue_id": half.queue_id,
        "queue_offset": op_offset,
        "stored_at": instant(now_ms),
        "producer_group": stored["producer_group"],
        "decision": decision,
        "half_offsets": [half.queue_offset],
        "transaction_ids": [stored["transaction_id"]],
        "actor": actor,
        "reason": reason,
        "body": record.value,
        "signature": None if security is None else record.signature(security),
    }

    rows = pa.Table.from_pylist([row], schema=schemas.OP)
    operations = to_operations(rows if security is None else with_verification(rows, security))

    topics = target_rows.topics_before(lake_rows.epoch + 1)
    inputs = Inputs(operations=operations, ended=_ended_halves(unit))
    decided = _decide(lake_rows, topics, inputs, now_ms)
    return _preview(lake_rows, record, _end_text(decided, unit, op_offset, topics))


def preview_command(
    lake: Lake,
    name: str,
    target: Target | None,
    actor: str,
    reason: str,
    target_rows: TargetRows | None = None,
) -> Preview:
    """Returns the preview of a command: its result, and where a message would go.

    Input: `target_rows`: as of `preview_end`.
    Errors: OperatorError when no message has the place of the target.
    """
    target_rows = target_rows or TargetRows(lake)
    if isinstance(target, RecordTarget):
        lake_rows = _find(lake, target, target_rows)
    else:
        lake_rows = LakeRows(*latest_committed(lake))
    if isinstance(target, UndeliverableTarget):
        require_undeliverable(lake, target)

    target_text = None if target is None else str(target)
    commands = _frame([{"admin_offset": 0, "command": name, "target": target_text}], COMMANDS)

    topics = target_rows.topics_before(lake_rows.epoch + 1)
    undeliverable = find_undeliverable(lake, commands, topics, lake_rows.epoch + 1)

    inputs = Inputs(commands=commands, undeliverable=undeliverable)
    decided = _decide(lake_rows, topics, inputs, time.time_ns() // 1_000_000)
    (result,) = decided.command_results["result"].to_pylist()

    messages = {
        (row["source"], row["queue_id"], row["queue_offset"]) for row in undeliverable.to_pylist()
    }
    places = list(_places(decided, messages, topics))
    if result == STILL_UNDELIVERABLE:
        places = [_obstacle(row, topics) for row in undeliverable.to_pylist()]
    expected = "; ".join([f"{result}: {rule_texts.RESULTS[result]}", *places])
    return _preview(lake_rows, command(name, target_text, actor, reason), expected)


def _find(lake: Lake, target: RecordTarget, target_rows: TargetRows) -> LakeRows:
    lake_rows = target_rows.of(target)
    if not lake_rows.messages:
        raise OperatorError(nothing_found(lake_rows, target, lake.path))
    return lake_rows


def _preview(lake_rows: LakeRows, record: Record, expected: str) -> Preview:
    cluster_id = "" if lake_rows.newest is None else lake_rows.newest.cluster_id
    return Preview(record, expected, lake_rows.epoch, cluster_id)


def _decide(lake_rows: LakeRows, topics: pa.Table, inputs: Inputs, now_ms: int) -> Decision:
    newest = lake_rows.newest
    units = units_of(lake_rows)
    queues = sorted({unit.queue_id for unit in units})
    ends = {} if newest is None else newest.queue_ends(newest.topics[HALF])

    state = State(
        halves=_frame([half for unit in units for half in unit.halves], HALVES),
        waiting=_frame(lake_rows.namings, NAMINGS),
        delayed=_frame(lake_rows.still_delayed, DELAYED),
        topics=topics,
    )

    floors = {} if newest is None else newest.floor.offsets
    known = _frame(
        [{"queue_id": q, "half_end": ends.get(q, 0), "floor": floors.get(q)} for q in queues],
        QUEUES,
    )

    return decide(state, inputs, Instants(now_ms, known), plan_parameters(newest))


def _frame(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _ended_halves(unit: Unit) -> pa.Table:
    """Returns the unit's ended halves. Output: ENDED."""
    rows = []
    for message in unit.messages:
        end = unit.ends.get(message["queue_offset"])
        if end is None:
            continue

        row = {
            **message,
            **end,
            "tran_size": message["tran_size"],
            "tran_seq": message["tran_seq"],
            "status": end["outcome"],
        }
        rows.append(row)

    return _frame(rows, ENDED)


def _end_text(decision: Decision, unit: Unit, op_offset: int, topics: pa.Table) -> str:
    """Returns in words the effect of an operation."""
    for conflict in decision.conflicts.to_pylist():
        if conflict["op_queue_offset"] == op_offset:
            reason = conflict["reason"]
            return f"{reason}: {rule_texts.CONFLICTS[reason]}"

    ends = [o for o in decision.outcomes.to_pylist() if o["op_queue_offset"] == op_offset]
    if not ends:
        missing = ", ".join(map(str, unit.missing_seqs))
        return f"waits: its set is incomplete, TRAN_SEQ {missing} missing" if missing else "waits"

    halves = {(HALF, end["queue_id"], end["queue_offset"]) for end in ends}
    text = f"{ends[0]['outcome']}, cause {ends[0]['cause']}"
    return "; ".join([text, *_places(decision, halves, topics)])


def _places(decision: Decision, messages: set[tuple[Any, ...]], topics: pa.Table) -> Iterator[str]:
    """Returns in words the places to which messages would go. Input: the topics before."""
    queue_counts = {row["topic"]: row["queue_count"] for row in topics.to_pylist()}

    for row in decision.placements.to_pylist():
        if (row["source"], row["queue_id"], row["queue_offset"]) not in messages:
            continue
        if not row["reason"]:
            yield f"delivered to topic {row['topic']}, queue {row['real_queue_id']}"
            continue

        text = f"undeliverable ({row['reason']})"
        queue_count = queue_counts.get(row["real_topic"])
        if row["asked_queue_id"] is not None and queue_count is not None:
            text += f", queue {row['asked_queue_id']} of {queue_count}"
        yield text

    for row in decision.delayed.to_pylist():
        if (row["source"], row["queue_id"], row["queue_offset"]) in messages:
            yield f"delayed until {output.instant(row['deliver_at'])}"


def _obstacle(message: Row, topics: pa.Table) -> str:
    """Returns in words why a topic cannot take a message."""
    topic, queue_id = message["real_topic"], message["real_queue_id"]
    counts = {row["topic"]: row["queue_count"] for row in topics.to_pylist()}
    if topic not in counts:
        return f"there is no topic {topic}"
    if queue_id is not None and queue_id >= counts[topic]:
        return f"queue {queue_id} of {counts[topic]} of topic {topic}"
    return f"topic {topic}"
