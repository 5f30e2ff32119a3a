"""One timeline of a unit: its records, checks and decisions, and the places of its messages.

Pure functions from a unit's rows to events. Within an epoch records come first, then commands, then
decisions: causes before effects, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checker.frames import DISCARDED
from pipelines.epoch.parameters import plan_parameters
from pipelines.explain import rule_texts
from pipelines.explain.rows import Row
from pipelines.explain.units import Unit
from pipelines.output import instant, span
from txlake import protocol as p

# The phases of an epoch: the records, the commands of operators, the decisions.
LANDED, COMMANDED, CONFLICT, ENDED, PLACED, ASKED = range(6)


@dataclass(frozen=True)
class Event:
    """One line of a timeline. Units: `at` ms.

    `phase`: its place within the epoch. `is_committed`: whether its epoch is. `detail` has the
    row's own values.
    """

    at: int
    epoch: int
    phase: int
    kind: str
    text: str
    is_committed: bool
    detail: dict[str, Any]


def events(unit: Unit) -> list[Event]:
    """Returns a unit's timeline."""
    all_events = [
        *_message_events(unit),
        *_command_events(unit),
        *_outcome_events(unit),
        *_check_events(unit),
        *_delivery_events(unit),
        *_operation_events(unit),
        *_conflict_events(unit),
    ]
    return sorted(all_events, key=lambda event: (event.epoch, event.phase, event.at))


def _event(
    unit: Unit,
    row: Row,
    at: int,
    phase: int,
    kind: str,
    text: str,
    columns: Sequence[str] = (),
    **more: Any,
) -> Event:
    """Returns a row's line; the text says so if the epoch is not committed yet.

    Input: `columns`: those of the row that are its detail, with `more`.
    """
    is_committed = unit.is_committed(row)
    if not is_committed:
        text += f" (epoch {row['epoch']}, not committed yet)"

    detail = {name: row[name] for name in columns} | more
    return Event(at, row["epoch"], phase, kind, text, is_committed, detail)


def _message_events(unit: Unit) -> Iterator[Event]:
    for row in unit.messages:
        text = unit.name(row["queue_offset"])
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

        columns = (
            "queue_id",
            "queue_offset",
            "producer_group",
            "transaction_id",
            "real_topic",
            "keys",
            "tran_size",
            "tran_seq",
            "delay_level",
            "delay_ms",
            "deliver_at",
            "immunity_ms",
            "error",
        )
        yield _event(unit, row, row["stored_at"], LANDED, unit.source, text, columns)


def _delay_text(row: Row) -> str:
    if row["deliver_at"] is not None:
        return f", not before {instant(row['deliver_at'])}"
    if row["delay_ms"] is not None:
        return f", delay {span(row['delay_ms'])}"
    if (row["delay_level"] or 0) > 0:
        return f", delay level {row['delay_level']}"
    return ""


def _operation_events(unit: Unit) -> Iterator[Event]:
    columns = (
        "queue_id",
        "queue_offset",
        "producer_group",
        "decision",
        "half_offsets",
        "transaction_ids",
        "from_check",
        "check_id",
        "remark",
        "actor",
        "reason",
        "is_signed",
    )
    for op in unit.operations:
        effect = _effect_of(unit, op)
        text = f"{_operation_text(unit, op)}; {_EFFECTS[effect]}"
        yield _event(unit, op, op["stored_at"], LANDED, "operation", text, columns, effect=effect)

    unreadable_columns = ("queue_id", "queue_offset", "error")
    for op in unit.unreadable_operations:
        text = (
            f"op {unit.queue_id}-{op['queue_offset']} cannot be read ({op['error']}), but its "
            "body names this half; without effect: unreadable_operation"
        )
        yield _event(
            unit,
            op,
            op["stored_at"],
            LANDED,
            "operation",
            text,
            unreadable_columns,
            effect="conflict",
        )


def _operation_text(unit: Unit, op: Row) -> str:
    """Returns an operation in words: its decision, its origin, and the halves that it names."""
    text = f"op {unit.queue_id}-{op['queue_offset']}: {op['decision']}"
    text += f" by group {op['producer_group']}"
    if op["from_check"]:
        text += ", from a check" if op["check_id"] is None else f", check {op['check_id']}"

    by = rule_texts.actor_text(op["actor"], op["reason"])
    text += f", operator{by}" if by else ""
    text += _signature_text(op)
    text += "" if op["remark"] is None else f", remark: {op['remark']}"

    offsets = sorted(unit.offsets & set(op["half_offsets"]))
    names = ", ".join(f"{unit.queue_id}-{offset}" for offset in offsets)
    return f"{text}; names {names}"


def _signature_text(op: Row) -> str:
    """Returns whether the operation's signature was valid, if its group had a key then."""
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
    "absorbed": "decided for the set at another of its namings",
    "undecided": "not decided yet",
}


def _effect_of(unit: Unit, op: Row) -> str:
    """Returns the effect of an operation, a key of _EFFECTS."""
    offset = op["queue_offset"]
    if any(o["op_queue_offset"] == offset and o["outcome"] != DISCARDED for o in unit.outcomes):
        return "ends"
    if any(row["op_queue_offset"] == offset for row in unit.conflicts):
        return "conflict"
    if op["decision"] == p.UNKNOWN:
        return "declines"
    if not unit.is_committed(op):
        return "undecided"
    return "waits" if any(other["queue_offset"] == offset for other in unit.waiting) else "absorbed"


def _conflict_events(unit: Unit) -> Iterator[Event]:
    columns = ("queue_id", "op_queue_offset", "half_queue_offset", "reason")
    for row in unit.conflicts:
        rule = rule_texts.CONFLICTS.get(row["reason"])
        sentence = "" if rule is None else f": {rule}{_lateness_text(unit, row)}"
        text = (
            f"op {row['queue_id']}-{row['op_queue_offset']} is without effect on half "
            f"{row['queue_id']}-{row['half_queue_offset']}: {row['reason']}{sentence}"
        )
        yield _event(unit, row, row["decided_at"], CONFLICT, "conflict", text, columns)


def _lateness_text(unit: Unit, conflict: Row) -> str:
    """Returns how long after its deadline an operation came, if that made it a conflict."""
    if conflict["reason"] != "after_immunity":
        return ""

    first = unit.messages[0]
    offset = conflict["op_queue_offset"]
    op = next((op for op in unit.operations if op["queue_offset"] == offset), None)
    if op is None or first["immunity_ms"] is None:
        return ""

    late_ms = op["stored_at"] - first["stored_at"] - first["immunity_ms"]
    has_decided = any(row["cause"] == "check_answer" for row in unit.outcomes)
    decision = "the check decided" if has_decided else "no check has decided yet"
    return f"; it came {span(late_ms)} after its deadline; {decision}"


def _command_events(unit: Unit) -> Iterator[Event]:
    undeliverable = [row for row in unit.deliveries if row["action"] == "UNDELIVERABLE"]
    targets: set[p.Target | None] = {
        *map(unit.target, unit.offsets),
        *(p.UndeliverableTarget(row["real_queue_offset"]) for row in undeliverable),
    }
    by_target = unit.lake_rows.commands_by_target
    by_offset = unit.lake_rows.commands_by_offset

    offsets = {row["queue_offset"] for target in targets for row in by_target.get(target, ())}
    offsets |= {row["admin_offset"] for row in unit.deliveries} & by_offset.keys()

    for offset in sorted(offsets):
        row = by_offset[offset]
        by = rule_texts.actor_text(row["actor"], row["reason"])
        result = row["result"]
        rule_text = rule_texts.RESULTS.get(result, "")
        text = f"{row['command']} {row['target']}{by}; {result}: {rule_text}"
        yield _event(
            unit,
            row,
            row["stored_at"],
            COMMANDED,
            "command",
            text,
            ("command", "target", "actor", "reason", "result"),
            admin_offset=offset,
        )


def _outcome_events(unit: Unit) -> Iterator[Event]:
    """Returns the ends of its halves, and the copies of discarded ones."""
    discarded: set[int] = set()
    columns = (
        "queue_id",
        "queue_offset",
        "arm",
        "outcome",
        "cause",
        "op_queue_offset",
        "real_topic",
        "real_queue_id",
        "real_queue_offset",
    )
    for row in unit.outcomes:
        offset = row["queue_offset"]
        text = f"{unit.name(offset)} {row['outcome']}, cause {row['cause']}"
        if row["op_queue_offset"] is not None:
            text += f", by op {unit.queue_id}-{row['op_queue_offset']}"
        yield _event(unit, row, row["decided_at"], ENDED, "outcome", text, columns)

        if row["real_queue_offset"] is not None:
            yield _placement_event(unit, row, "delivered", row["real_topic"])
        if row["outcome"] == DISCARDED and offset not in discarded:
            discarded.add(offset)
            yield from _copy_events(unit, row)


def _copy_events(unit: Unit, outcome: Row) -> Iterator[Event]:
    discarded = (unit.queue_id, outcome["queue_offset"], outcome["epoch"])
    for copy in unit.lake_rows.copies:
        if (copy["half_queue_id"], copy["half_queue_offset"], copy["epoch"]) == discarded:
            at = {"real_queue_id": 0, "real_queue_offset": copy["queue_offset"]}
            yield _placement_event(unit, {**outcome, **at}, "copied", p.CHECK_MAX_TOPIC)


_PLACED_TEXTS = {
    "delivered": "is delivered to",
    "copied": "is copied into",
    "undeliverable": "is undeliverable and put into",
}


def _placement_event(unit: Unit, row: Row, kind: str, topic: str) -> Event:
    table = f"topics/{unit.lake_rows.table_ids.get(topic)}"
    text = (
        f"{unit.name(row['queue_offset'])} {_PLACED_TEXTS[kind]} topic {topic}, queue "
        f"{row['real_queue_id']}, offset {row['real_queue_offset']} (table {table})"
    )
    if unit.lake_rows.is_deleted(table, row["epoch"]):
        text += rule_texts.DELETED

    return _event(
        unit,
        row,
        row["decided_at"],
        PLACED,
        kind,
        text,
        topic=topic,
        table=table,
        queue_id=row["real_queue_id"],
        queue_offset=row["real_queue_offset"],
    )


def _check_events(unit: Unit) -> Iterator[Event]:
    """Returns the attempts to ask, with their answers."""
    parameters = plan_parameters(unit.lake_rows.newest)
    for row in unit.checks:
        answers = [op for op in unit.operations if op["check_id"] == row["check_id"]]
        topic = p.check_topic(row["producer_group"], parameters.check_topic_prefix)
        number = f"{row['check_times']} of {parameters.check_max}"

        text = f"check {number} ({row['check_id']}) sent to {topic}: "
        text += "acknowledged" if row["acknowledged"] else "not acknowledged, does not count"
        for op in answers:
            text += f", answered {op['decision']} by op {unit.queue_id}-{op['queue_offset']}"
        if row["acknowledged"] and not answers:
            text += ", no answer"

        yield _event(
            unit,
            row,
            row["sent_at"],
            ASKED,
            "check",
            text,
            ("queue_id", "queue_offset", "arm", "check_times", "check_id", "acknowledged"),
            answered_by=[op["queue_offset"] for op in answers],
        )


def _delivery_events(unit: Unit) -> Iterator[Event]:
    """Returns the delays, deliveries and cancellations that are not part of a commit."""
    for row in unit.delayed:
        text = f"{unit.name(row['queue_offset'])} {delayed_text(unit, row)}"
        at = _epoch_at(unit, row["epoch"]) or row["deliver_at"]
        columns = ("queue_id", "queue_offset", "deliver_at")
        yield _event(unit, row, at, PLACED, "delayed", text, columns)

    for row in unit.deliveries:
        if row["action"] == "DELIVERED":
            yield _placement_event(unit, row, "delivered", row["real_topic"])
        elif row["action"] == "UNDELIVERABLE":
            yield _placement_event(unit, row, "undeliverable", p.UNDELIVERABLE_TOPIC)
        else:
            text = f"{unit.name(row['queue_offset'])} is cancelled: it is not delivered"
            columns = ("queue_id", "queue_offset", "admin_offset")
            yield _event(unit, row, row["decided_at"], PLACED, "cancelled", text, columns)


def delayed_text(unit: Unit, row: Row) -> str:
    """Returns until when a message is delayed, and whether its producer asked for longer."""
    due_at = row["deliver_at"]
    text = f"is delayed until {instant(due_at)}"
    # A DELIVER_AT at or before `epoch_at` is no delay: nothing was cut short.
    floor = max(due_at, _epoch_at(unit, row["epoch"]) or due_at)
    message = next(m for m in unit.messages if m["queue_offset"] == row["queue_offset"])
    parameters = plan_parameters(unit.lake_rows.epochs.get(row["epoch"]) or unit.lake_rows.newest)
    if (message["delay_level"] or 0) > 0 and not parameters.deliver_at_goes_first:
        return text

    requested = ""
    if message["deliver_at"] is not None:
        requested = instant(message["deliver_at"]) if message["deliver_at"] > floor else ""
    elif (message["delay_ms"] or 0) > parameters.deliver_at_max_ms:
        requested = span(message["delay_ms"])

    if requested:
        text += f" (asked for {requested}, capped at deliver_at_max_ms)"
    return text


def _epoch_at(unit: Unit, epoch: int) -> int | None:
    """Returns `epoch_at` of an epoch; None if the epoch was not fetched."""
    plan = unit.lake_rows.epochs.get(epoch)
    return None if plan is None else plan.epoch_at
