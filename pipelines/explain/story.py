"""One timeline of a unit: what landed, what was asked, what was decided, where it is.

Pure functions from a unit's rows to events. Within an epoch records come first, then commands, then
what was decided: causes before effects, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Iterator

from checker.frames import DISCARDED
from pipelines.explain import words
from pipelines.explain.event import COMMANDED, CONFLICT, LANDED, Event, Part, event, place
from pipelines.explain.rows import Row
from pipelines.explain.story_ends import checks, deliveries, outcomes
from pipelines.explain.units import Unit
from pipelines.screen import instant, span
from txlake import protocol as p


def events(unit: Unit) -> list[Event]:
    """Returns a unit's timeline."""
    parts = [
        *_landed(unit), *_commands(unit), *outcomes(unit), *checks(unit), *deliveries(unit),
        *_operations(unit), *_conflicts(unit),
    ]  # fmt: skip
    ordered = sorted(parts, key=lambda part: (part[0].epoch, part[1], part[0].at))
    return [event for event, _ in ordered]


def _landed(unit: Unit) -> Iterator[Part]:
    for row in unit.messages:
        text = place(unit, row["queue_offset"])
        if row["error"] is not None:
            text += f" cannot be read: {row['error']}"
        else:
            text += f" for topic {row['real_topic']}"
            if row["real_queue_id"] is not None:
                text += f", queue {row['real_queue_id']}"
            if (row["tran_size"] or 1) > 1:
                text += f", {row['tran_seq'] + 1} of {row['tran_size']} messages"
            text += _delay_text(row)
            if row["immunity_ms"] is not None:
                text += f", immunity {span(row['immunity_ms'])}"
        yield event(
            unit, row, row["stored_at"], LANDED, unit.source, text,
            ("queue_id", "queue_offset", "producer_group", "transaction_id", "real_topic", "keys",
             "tran_size", "tran_seq", "delay_level", "deliver_at", "immunity_ms", "error"),
        )  # fmt: skip


def _delay_text(row: Row) -> str:
    if (row["delay_level"] or 0) > 0:
        return f", delay level {row['delay_level']}"
    if row["deliver_at"] is not None:
        return f", not before {instant(row['deliver_at'])}"
    return ""


def _operations(unit: Unit) -> Iterator[Part]:
    for op in unit.operations:
        effect = effect_of(unit, op)
        named = sorted(unit.offsets & set(op["half_offsets"]))
        text = f"op {unit.queue_id}-{op['queue_offset']}: {op['decision']}"
        text += f" by group {op['producer_group']}"
        if op["from_check"]:
            text += ", from a check" if op["check_id"] is None else f", check {op['check_id']}"
        text += words.by_whom(op["actor"], op["reason"]) and (
            f", operator{words.by_whom(op['actor'], op['reason'])}"
        )
        text += _signature_text(op)
        text += "" if op["remark"] is None else f", remark: {op['remark']}"
        text += f"; names {', '.join(f'{unit.queue_id}-{offset}' for offset in named)}"
        text += f"; {_EFFECTS[effect]}"
        yield event(
            unit, op, op["stored_at"], LANDED, "operation", text,
            ("queue_id", "queue_offset", "producer_group", "decision", "half_offsets",
             "transaction_ids", "from_check", "check_id", "remark", "actor", "reason",
             "is_signed"),
            effect=effect,
        )  # fmt: skip
    for op in unit.unreadable_operations:
        text = (
            f"op {unit.queue_id}-{op['queue_offset']} cannot be read ({op['error']}), but its "
            "body names this half; without effect: unreadable_operation"
        )
        yield event(
            unit, op, op["stored_at"], LANDED, "operation", text,
            ("queue_id", "queue_offset", "error"), effect="conflict",
        )  # fmt: skip


def _signature_text(op: Row) -> str:
    """Returns what was found when the operation landed, if its group had a key then."""
    if op["is_signed"] is None:
        return ""
    if op["is_signed"]:
        return f", signed under key {op['signature'].partition(':')[0]}"
    return ", not signed" if op["signature"] is None else ", its signature is not valid"


_EFFECTS = {
    "ends": "ends it",
    "conflict": "without effect",
    "declines": "ends nothing",
    "waits": "waits",
    "absorbed": "its other naming ended the set",
    "undecided": "not decided yet",
}


def effect_of(unit: Unit, op: Row) -> str:
    """Returns what became of an operation, a key of _EFFECTS."""
    offset = op["queue_offset"]
    if any(o["op_queue_offset"] == offset and o["outcome"] != DISCARDED for o in unit.outcomes):
        return "ends"
    if any(row["op_queue_offset"] == offset for row in unit.conflicts):
        return "conflict"
    if op["decision"] == p.UNKNOWN:
        return "declines"
    if not unit.is_settled(op):
        return "undecided"
    return "waits" if any(other["queue_offset"] == offset for other in unit.waiting) else "absorbed"


def _conflicts(unit: Unit) -> Iterator[Part]:
    for row in unit.conflicts:
        rule = words.CONFLICTS.get(row["reason"])
        sentence = "" if rule is None else f": {rule}"
        text = (
            f"op {row['queue_id']}-{row['op_queue_offset']} is without effect on half "
            f"{row['queue_id']}-{row['half_queue_offset']}: {row['reason']}{sentence}"
        )
        yield event(
            unit, row, row["decided_at"], CONFLICT, "conflict", text,
            ("queue_id", "op_queue_offset", "half_queue_offset", "reason"),
        )  # fmt: skip


def _commands(unit: Unit) -> Iterator[Part]:
    targets: set[p.Target | None] = {unit.target(offset) for offset in unit.offsets}
    targets |= {
        p.UndeliverableTarget(row["real_queue_offset"])
        for row in unit.deliveries
        if row["action"] == "UNDELIVERABLE"
    }
    admin_offsets = {row["admin_offset"] for row in unit.deliveries}
    for row in unit.found.commands:
        is_asked_by = row["queue_offset"] in admin_offsets
        if not (is_asked_by or p.read_target(row["target"]) in targets):
            continue
        result = row["result"]
        text = f"{row['command']} {row['target']}{words.by_whom(row['actor'], row['reason'])}"
        text += f"; {result}: {words.RESULTS.get(result, '')}"
        yield event(
            unit, row, row["stored_at"], COMMANDED, "command", text,
            ("command", "target", "actor", "reason", "result"), admin_offset=row["queue_offset"],
        )  # fmt: skip
