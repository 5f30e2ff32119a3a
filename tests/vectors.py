"""Read `tests/scenarios.json`: one half queue, one epoch a vector; see its `about`."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pyarrow as pa

from checker.decide import decide
from checker.frames import (
    COMMITTED,
    HALVES,
    NEW_HALVES,
    OPERATIONS,
    QUEUES,
    Decision,
    Inputs,
    Instants,
    Parameters,
    State,
)
from txlake.protocol import DECISION_CODES, OFFSETS_PATTERN, delay_levels_ms, matches

VECTORS = json.loads(pathlib.Path(__file__).with_name("scenarios.json").read_text())
SCENARIOS: dict[str, dict[str, Any]] = {row["id"]: row for row in VECTORS["scenarios"]}
T_MS: int = VECTORS["T_ms"]


def parameters_of(scenario: dict[str, Any]) -> Parameters:
    values = {**VECTORS["defaults"], **scenario["config"]}
    values.pop("c_behind_ms", None)
    return Parameters(**values, delay_levels_ms=delay_levels_ms())


def immunity_ms(text: str | None) -> int | None:
    if text is None or not re.fullmatch("[0-9]{1,9}", text, flags=re.ASCII):
        return None
    return int(text) * 1000


def half_row(half: dict[str, Any]) -> dict[str, Any]:
    tran_size, tran_seq = half.get("set") or (None, None)
    return {
        "queue_id": 0,
        "queue_offset": half["queue_offset"],
        "producer_group": half["producer_group"],
        "transaction_id": half["transaction_id"],
        "tran_size": tran_size,
        "tran_seq": tran_seq,
        "stored_at": T_MS - half["age_ms"],
        "real_topic": "orders",
        "real_queue_id": None,
        "delay_level": half["delay_level"],
        "deliver_at": None,
        "immunity_ms": immunity_ms(half["immunity"]),
        "error": half.get("error"),
    }


def is_old(half: dict[str, Any]) -> bool:
    """Return whether the half has a history, so that an earlier epoch landed it."""
    return (
        half["check_times"] > 0
        or half["since_attempt_ms"] is not None
        or half.get("outcome") is not None
    )


def state_row(half: dict[str, Any]) -> dict[str, Any]:
    row = half_row(half)
    row.pop("error")
    since = half["since_attempt_ms"]
    discarded = half.get("outcome") == "DISCARDED"
    return row | {
        "unit_offset": half["queue_offset"],
        "arm": 0,
        "check_times": half["check_times"],
        "checked_at": None if since is None else T_MS - since,
        "last_answer_at": None,
        "discard_cause": "check_max" if discarded else None,
        "discards": int(discarded),
    }


def operation_row(operation: dict[str, Any]) -> dict[str, Any]:
    offsets = operation.get("half_offsets")
    body = operation.get("body")
    if body is None:
        body = "".join(f"{offset}," for offset in offsets)
    ids = operation.get("transaction_ids")
    if ids is None and operation.get("transaction_id") is not None:
        ids = [operation["transaction_id"]] * len(offsets)
    readable = matches(OFFSETS_PATTERN, body) and operation["decision"] in DECISION_CODES
    return {
        "queue_id": 0,
        "op_queue_offset": operation["queue_offset"],
        "stored_at": T_MS,
        "producer_group": operation["producer_group"],
        "decision": operation["decision"] if readable else None,
        "half_offsets": [int(text) for text in body.split(",") if text] if readable else None,
        "transaction_ids": ids,
        "cause": "operation",
        "error": None if readable else "bad_body",
    }


def run_scenario(scenario: dict[str, Any]) -> Decision:
    halves = scenario["halves"]
    landed_end = 1 + max((half["queue_offset"] for half in halves), default=-1)
    old = [state_row(half) for half in halves if is_old(half)]
    new = [half_row(half) for half in halves if not is_old(half)]
    return decide(
        State(halves=pa.Table.from_pylist(old, schema=HALVES)),
        Inputs(
            halves=pa.Table.from_pylist(new, schema=NEW_HALVES),
            operations=pa.Table.from_pylist(
                [operation_row(row) for row in scenario["operations"]], schema=OPERATIONS
            ),
        ),
        Instants(
            T_MS,
            pa.Table.from_pylist(
                [
                    {
                        "queue_id": 0,
                        "known_at": T_MS - scenario["config"].get("c_behind_ms", 0),
                        "halves_known_at": T_MS,
                        "half_end": landed_end,
                    }
                ],
                schema=QUEUES,
            ),
        ),
        parameters_of(scenario),
    )


def actions_of(scenario: dict[str, Any], decision: Decision) -> dict[str, str]:
    """Say what became of each half, in the words of the vectors' `expect`."""
    actions: dict[int, str] = {}
    for half in scenario["halves"]:
        unreadable = half.get("error") is not None
        actions[half["queue_offset"]] = (
            "UNREADABLE" if unreadable else half.get("outcome") or "WAIT"
        )
    for row in decision.due.to_pylist():
        first, *others = row["half_offsets"]
        actions[first] = f"CHECK {row['check_times']}"
        actions |= dict.fromkeys(others, f"WITH {first}")
    for row in decision.state.waiting.to_pylist():
        if row["half_queue_offset"] not in actions:
            actions[row["half_queue_offset"]] = "OPERATION WAITS"
    levels = {half["queue_offset"]: half["delay_level"] for half in scenario["halves"]}
    delayed = {row["queue_offset"] for row in decision.delayed.to_pylist()}
    for row in decision.outcomes.to_pylist():
        offset = row["queue_offset"]
        text = row["outcome"]
        if row["outcome"] == "DISCARDED":
            text += f" {row['cause']}"
        if row["cause"] in ("late_end", "duplicate_in_set"):
            text += f" {row['cause']}"
        if row["outcome"] == COMMITTED and offset in delayed:
            text += f" scheduled level {levels[offset]}"
        actions[offset] = text
    return {str(offset): action for offset, action in sorted(actions.items())}
