"""A report as people read it, and as plain JSON values, with instants as UTC text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.explain.reasons import ENDED, Reason
from pipelines.explain.report import Decision, MessageReport, Report
from pipelines.explain.rule_texts import DELETED
from pipelines.output import instant, print_line, print_rows

# The codes of waits that say what comes next.
_NEXT = ("immune", "check_due", "last_check", "expires", "discarded", "not_known")


def show(report: Report) -> None:
    """Prints the status of a unit, the reasons, and its timeline."""
    for line in lines(report):
        print_line(line)
    print_line()
    rows = [(instant(event.at), event.epoch, event.text) for event in report.events]
    print_rows(("when", "epoch", "what"), rows)


def lines(report: Report) -> Iterator[str]:
    """Returns a report's head, line by line."""
    unit = report.unit
    first = unit.messages[0]
    name = unit.name(first["queue_offset"])
    if first["transaction_id"] is not None:
        name = f"transaction {first['transaction_id']}, {name}"

    group = "" if first["producer_group"] is None else f", group {first['producer_group']}"
    yield f"{name}{group}: {report.headline}"

    for message in report.messages:
        yield from _message_lines(report, message)
    for decision in report.decisions:
        yield from _decision_lines(report, decision)
    for wait in report.waits:
        yield f"  {'next' if wait.code in _NEXT else 'why'}: {wait}"


def _message_lines(report: Report, message: MessageReport) -> Iterator[str]:
    row = message.row
    keys = "" if row["keys"] is None else f", keys {row['keys']}"
    text = f"  {report.unit.name(row['queue_offset'])}, topic {row['real_topic']}{keys}: "

    if message.place is not None:
        place = message.place
        yield (
            f"{text}delivered to topic {place.topic}, queue {place.queue_id}, offset "
            f"{place.queue_offset} (table {place.table}) in epoch {place.epoch}"
            f"{DELETED if place.is_deleted else ''}"
        )
        yield f"    {_readers_text(message)}"
        for publication in message.publications or ():
            yield f"    {publication.text}"
        return

    yield text + _undelivered_text(report, message)
    for wait in message.waits:
        yield f"    why: {wait}"


def _undelivered_text(report: Report, message: MessageReport) -> str:
    """Returns how a message stands that no row says to be delivered."""
    if any(wait.code == ENDED for wait in message.waits):
        return ENDED if message.end is None else f"{message.end['outcome']}, delay {ENDED}"
    if message.end is not None:
        return f"{message.end['outcome']}, not delivered"

    is_deleted = any(wait.code == ENDED for wait in report.waits)
    return ENDED if is_deleted else "not delivered"


def _readers_text(message: MessageReport) -> str:
    """Returns the consumer groups that have read a delivered message and those that have not."""
    if not message.readers:
        return "no consumer group has read its topic"

    read = [reader.consumer_group for reader in message.readers if reader.has_read]
    refused = [reader for reader in message.readers if reader.refusal is not None]
    unread = [
        reader.consumer_group
        for reader in message.readers
        if not reader.has_read and reader.refusal is None
    ]
    parts = []
    if read:
        parts.append(f"read by consumer groups: {', '.join(read)}")
    parts += [f"consumer group {each.consumer_group}: {each.refusal_text}" for each in refused]
    if unread:
        parts.append(f"not yet read by consumer groups: {', '.join(unread)}")

    return "; ".join(parts)


def _decision_lines(report: Report, decision: Decision) -> Iterator[str]:
    queue = report.unit.queue_id
    by = "" if decision.op_queue_offset is None else f" by op {queue}-{decision.op_queue_offset}"
    yield f"  {decision.outcome}, cause {decision.cause}{by}: {decision.rule}"

    known = "not known" if decision.known_at is None else instant(decision.known_at)
    state = "" if decision.is_committed else ", not committed yet"
    numbers = f"; {decision.numbers}" if decision.numbers else ""
    yield (
        f"    epoch {decision.epoch}{state}: epoch_at {instant(decision.epoch_at)}, known_at of "
        f"queue {queue} {known}{numbers}"
    )


def to_json(report: Report) -> dict[str, Any]:
    """Returns a report as plain JSON values."""
    first = report.unit.messages[0]
    return {
        "source": report.unit.source,
        "queue_id": report.unit.queue_id,
        "queue_offset": first["queue_offset"],
        "producer_group": first["producer_group"],
        "transaction_id": first["transaction_id"],
        "status": report.status,
        "headline": report.headline,
        "messages": [_message_json(message) for message in report.messages],
        "decisions": [_decision_json(decision) for decision in report.decisions],
        "waits": [_wait_json(wait) for wait in report.waits],
        "events": [
            {
                "at": instant(event.at),
                "epoch": event.epoch,
                "event": event.kind,
                "is_committed": event.is_committed,
                "text": event.text,
                **{name: _json_value(name, value) for name, value in event.detail.items()},
            }
            for event in report.events
        ],
    }


def _message_json(message: MessageReport) -> dict[str, Any]:
    names = ("queue_id", "queue_offset", "real_topic", "keys", "tags", "tran_seq")
    end = message.end
    place = message.place
    return {
        **{name: message.row[name] for name in names},
        "stored_at": instant(message.row["stored_at"]),
        "outcome": None if end is None else end["outcome"],
        "cause": None if end is None else end["cause"],
        "delivered": None if place is None else vars(place),
        "consumer_groups": [
            {name: _json_value(name, value) for name, value in vars(reader).items()}
            for reader in message.readers
        ],
        "published": None
        if message.publications is None
        else [
            {name: _json_value(name, value) for name, value in vars(publication).items()}
            for publication in message.publications
        ],
        "waits": [_wait_json(wait) for wait in message.waits],
    }


def _decision_json(decision: Decision) -> dict[str, Any]:
    known_at = decision.known_at
    return {
        "outcome": decision.outcome,
        "cause": decision.cause,
        "op_queue_offset": decision.op_queue_offset,
        "rule": decision.rule.sentence,
        "source": decision.rule.source,
        "numbers": decision.numbers or None,
        "epoch": decision.epoch,
        "epoch_at": instant(decision.epoch_at),
        "known_at": None if known_at is None else instant(known_at),
        "is_committed": decision.is_committed,
    }


def _wait_json(wait: Reason) -> dict[str, Any]:
    return {
        "code": wait.code,
        "text": wait.rule.sentence,
        "source": wait.rule.source,
        "until": None if wait.until is None else instant(wait.until),
    }


def _json_value(name: str, value: Any) -> Any:
    is_instant = name == "at" or name.endswith("_at")
    return instant(value) if is_instant and isinstance(value, int) else value
