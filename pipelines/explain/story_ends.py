"""The part of a timeline that the job decided: ends, checks, where messages went."""

from __future__ import annotations

from collections.abc import Iterator

from checker.frames import DISCARDED
from pipelines.epoch.parameters import plan_parameters
from pipelines.explain import words
from pipelines.explain.event import ASKED, ENDED, PLACED, Part, event, place
from pipelines.explain.rows import Row
from pipelines.explain.units import Unit
from pipelines.screen import instant
from txlake import protocol as p


def outcomes(unit: Unit) -> Iterator[Part]:
    """Returns the ends of its halves, and the copies of discarded ones."""
    discarded: set[int] = set()
    for row in unit.outcomes:
        offset = row["queue_offset"]
        text = f"{place(unit, offset)} {row['outcome']}, cause {row['cause']}"
        if row["op_queue_offset"] is not None:
            text += f", by op {unit.queue_id}-{row['op_queue_offset']}"
        yield event(
            unit, row, row["decided_at"], ENDED, "outcome", text,
            ("queue_id", "queue_offset", "arm", "outcome", "cause", "op_queue_offset",
             "real_topic", "real_queue_id", "real_queue_offset"),
        )  # fmt: skip
        if row["real_queue_offset"] is not None:
            yield _placed(unit, row, "delivered", row["real_topic"], row["decided_at"])
        if row["outcome"] == DISCARDED and offset not in discarded:
            discarded.add(offset)
            yield from _copy(unit, row)


def _copy(unit: Unit, outcome: Row) -> Iterator[Part]:
    for copy in unit.found.copies:
        at = (copy["half_queue_id"], copy["half_queue_offset"], copy["epoch"])
        if at == (unit.queue_id, outcome["queue_offset"], outcome["epoch"]):
            row = {**copy, "real_queue_id": 0, "real_queue_offset": copy["queue_offset"]}
            yield _placed(unit, row, "copied", p.CHECK_MAX_TOPIC, outcome["decided_at"])


_PLACED_TEXTS = {
    "delivered": "is delivered to",
    "copied": "is copied into",
    "undeliverable": "is undeliverable and put into",
}


def _placed(unit: Unit, row: Row, kind: str, topic: str, at: int) -> Part:
    table = unit.found.table_ids.get(topic)
    is_copy = "half_queue_offset" in row
    name = place(unit, row["half_queue_offset" if is_copy else "queue_offset"])
    text = (
        f"{name} {_PLACED_TEXTS[kind]} topic {topic}, queue {row['real_queue_id']}, offset "
        f"{row['real_queue_offset']} (table topics/{table})"
    )
    if unit.found.is_deleted(f"topics/{table}", row["epoch"]):
        text += words.DELETED
    return event(
        unit, row, at, PLACED, kind, text, topic=topic, table=f"topics/{table}",
        queue_id=row["real_queue_id"], queue_offset=row["real_queue_offset"],
    )  # fmt: skip


def checks(unit: Unit) -> Iterator[Part]:
    """Returns the attempts to ask, with their answers."""
    parameters = plan_parameters(unit.found.newest)
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
        yield event(
            unit, row, row["sent_at"], ASKED, "check", text,
            ("queue_id", "queue_offset", "arm", "check_times", "check_id", "acknowledged"),
            answered_by=[op["queue_offset"] for op in answers],
        )  # fmt: skip


def deliveries(unit: Unit) -> Iterator[Part]:
    """Returns what became of its messages other than straight from a commit."""
    for row in unit.delayed:
        text = f"{place(unit, row['queue_offset'])} {delayed_text(unit, row)}"
        at = _epoch_at(unit, row["epoch"]) or row["deliver_at"]
        yield event(
            unit, row, at, PLACED, "delayed", text, ("queue_id", "queue_offset", "deliver_at")
        )  # fmt: skip
    for row in unit.deliveries:
        if row["action"] == "DELIVERED":
            yield _placed(unit, row, "delivered", row["real_topic"], row["decided_at"])
        elif row["action"] == "UNDELIVERABLE":
            yield _placed(unit, row, "undeliverable", p.UNDELIVERABLE_TOPIC, row["decided_at"])
        else:
            text = f"{place(unit, row['queue_offset'])} is cancelled: it is not delivered"
            yield event(
                unit, row, row["decided_at"], PLACED, "cancelled", text,
                ("queue_id", "queue_offset", "admin_offset"),
            )  # fmt: skip


def delayed_text(unit: Unit, row: Row) -> str:
    """Returns until when a message is delayed, and whether it asked for longer than the limit."""
    due_at, text = row["deliver_at"], f"is delayed until {instant(row['deliver_at'])}"
    # A DELIVER_AT at or before `epoch_at` is no delay: nothing was cut short.
    floor = max(due_at, _epoch_at(unit, row["epoch"]) or due_at)
    for message in unit.messages:
        if message["queue_offset"] != row["queue_offset"] or (message["delay_level"] or 0) > 0:
            continue
        if (message["deliver_at"] or 0) > floor:
            asked = instant(message["deliver_at"])
            text += f" (asked for {asked}, capped at deliver_at_max_ms)"
    return text


def _epoch_at(unit: Unit, epoch: int) -> int | None:
    """Returns `epoch_at` of an epoch; None if the epoch was not fetched."""
    found = unit.found.epochs.get(epoch)
    return None if found is None else found.epoch_at
