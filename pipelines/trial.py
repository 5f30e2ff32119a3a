"""What the rules would make of an operator's record, if the job landed it now.

The decision is the job's own (`checker.decide`), over the state of one unit; C is left out, so that
time alone does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from checker.decide import decide
from checker.frames import (
    COMMANDS,
    DELAYED,
    ENDED,
    HALVES,
    NAMINGS,
    OPERATIONS,
    QUEUES,
    UNDELIVERABLE,
    UNREADABLE,
    Decision,
    Inputs,
    Instants,
    Parameters,
    State,
)
from pipelines.explain import words
from pipelines.explain.rows import Found, Row
from pipelines.explain.units import Unit, units_of
from pipelines.operator_records import Record
from pipelines.restore import topics_before
from storage.lake import Lake
from txlake import protocol as p


def try_operation(lake: Lake, found: Found, unit: Unit, record: Record, now_ms: int) -> str:
    """Say what an operation would do to a unit: its outcome, a conflict, or that it waits."""
    headers = record.texts()
    offset = int((record.value or b"").rstrip(b","))
    op_offset = 1 + max((op["queue_offset"] for op in found.operations), default=0)
    row = {
        "queue_id": record.partition,
        "op_queue_offset": op_offset,
        "stored_at": now_ms,
        "producer_group": headers[p.PGROUP],
        "decision": p.DECISIONS[headers[p.TRAN_TYPE]],
        "half_offsets": [offset],
        "transaction_ids": [headers[p.UNIQ_KEY]],
        "cause": "operator",
        "error": None,
    }
    inputs = Inputs(operations=_frame([row], OPERATIONS), ended=_ended(unit))
    decision = _decide(lake, found, [unit], inputs, now_ms)
    for conflict in decision.conflicts.to_pylist():
        if conflict["op_queue_offset"] == op_offset:
            reason = conflict["reason"]
            return f"{reason}: {words.CONFLICTS[reason]}"
    ends = [o for o in decision.outcomes.to_pylist() if o["op_queue_offset"] == op_offset]
    if not ends:
        missing = ", ".join(map(str, unit.missing_seqs))
        return f"waits: its set is incomplete, TRAN_SEQ {missing} missing" if missing else "waits"
    text = f"{ends[0]['outcome']}, cause {ends[0]['cause']}"
    halves = {("half", end["queue_id"], end["queue_offset"]) for end in ends}
    return "; ".join([text, *_places(decision, halves)])


def try_command(
    lake: Lake, found: Found, undeliverable: Sequence[Row], record: Record, now_ms: int
) -> str:
    """Say what a command would do: its result, and where a message would go."""
    headers = record.texts()
    row = {
        "admin_offset": 0,
        "command": headers[p.COMMAND],
        "target": headers[p.TARGET],
        "error": None,
    }
    inputs = Inputs(
        commands=_frame([row], COMMANDS), undeliverable=_frame(undeliverable, UNDELIVERABLE)
    )
    decision = _decide(lake, found, units_of(found), inputs, now_ms)
    (result,) = decision.command_results["result"].to_pylist()
    messages = {(r["source"], r["queue_id"], r["queue_offset"]) for r in undeliverable}
    return "; ".join([f"{result}: {words.RESULTS[result]}", *_places(decision, messages)])


def _decide(
    lake: Lake, found: Found, units: Sequence[Unit], inputs: Inputs, now_ms: int
) -> Decision:
    newest = found.newest
    queues = sorted({unit.queue_id for unit in units})
    ends = {queue: 0 if newest is None else newest.half_end(queue) for queue in queues}
    state = State(
        halves=_frame([half for unit in units for half in unit.halves], HALVES),
        waiting=_frame(found.namings, NAMINGS),
        delayed=_frame(_delayed(found), DELAYED),
        topics=topics_before(lake, found.epoch + 1),
    )
    known = _frame([{"queue_id": queue, "half_end": end} for queue, end in ends.items()], QUEUES)
    parameters = Parameters() if newest is None else newest.parameters
    return decide(state, inputs, Instants(now_ms, known), parameters)


def _frame(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema=schema
    )


def _ended(unit: Unit) -> pa.Table:
    rows = [
        {**message, **unit.ends[message["queue_offset"]], "tran_size": message["tran_size"],
         "tran_seq": message["tran_seq"], "status": unit.ends[message["queue_offset"]]["outcome"]}
        for message in unit.messages
        if message["queue_offset"] in unit.ends
    ]  # fmt: skip
    if unit.error is not None:
        rows += [{**unit.messages[0], "status": UNREADABLE, "arm": 0}]
    return _frame(rows, ENDED)


def _delayed(found: Found) -> list[Row]:
    done = {(row["source"], row["queue_id"], row["queue_offset"]) for row in found.deliveries}
    return [
        row
        for row in found.delayed
        if (row["source"], row["queue_id"], row["queue_offset"]) not in done
    ]


def _places(decision: Decision, messages: set[tuple[Any, ...]]) -> list[str]:
    """Say where messages would go."""
    texts = []
    for row in decision.placements.to_pylist():
        if (row["source"], row["queue_id"], row["queue_offset"]) in messages:
            text = f"delivered to topic {row['topic']}, queue {row['real_queue_id']}"
            texts.append(f"undeliverable ({row['reason']})" if row["reason"] else text)
    for row in decision.delayed.to_pylist():
        if (row["source"], row["queue_id"], row["queue_offset"]) in messages:
            texts.append(f"delayed until {words.instant(row['deliver_at'])}")
    return texts
