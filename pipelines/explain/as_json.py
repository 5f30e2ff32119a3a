"""A report as plain JSON values; instants are text, UTC."""

from __future__ import annotations

from typing import Any

from pipelines.explain.report import Decision, MessageReport, Report
from pipelines.explain.waits import Wait
from pipelines.screen import instant


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
                **{name: _plain(name, value) for name, value in event.detail.items()},
            }
            for event in report.events
        ],
    }


def _message_json(message: MessageReport) -> dict[str, Any]:
    names = ("queue_id", "queue_offset", "real_topic", "keys", "tags", "tran_seq")
    end, place = message.end, message.place
    return {
        **{name: message.row[name] for name in names},
        "stored_at": instant(message.row["stored_at"]),
        "outcome": None if end is None else end["outcome"],
        "cause": None if end is None else end["cause"],
        "delivered": None if place is None else vars(place),
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


def _wait_json(wait: Wait) -> dict[str, Any]:
    return {
        "code": wait.code,
        "text": wait.rule.sentence,
        "source": wait.rule.source,
        "until": None if wait.until is None else instant(wait.until),
    }


def _plain(name: str, value: Any) -> Any:
    return instant(value) if name.endswith("_at") and isinstance(value, int) else value
