"""Bring what the decision and the model give into one form, so that they compare."""

from __future__ import annotations

from typing import Any

from checker.frames import Decision, State
from tests.support.model import Model
from tests.support.model_units import Row, coordinate

Rows = dict[str, list[Any]]
COLUMNS = {
    "outcomes": "queue_id queue_offset arm outcome cause op_queue_offset producer_group"
    " transaction_id real_topic real_queue_id real_queue_offset",
    "conflicts": "queue_id op_queue_offset half_queue_offset reason",
    "due": "queue_id queue_offset arm check_times producer_group transaction_id real_topic"
    " half_offsets",
    "delayed": "source queue_id queue_offset deliver_at real_topic real_queue_id producer_group",
    "deliveries": "source queue_id queue_offset action real_topic real_queue_id real_queue_offset"
    " admin_offset",
    "placements": "topic real_queue_id real_queue_offset source queue_id queue_offset real_topic"
    " asked_queue_id reason",
    "new_topics": "topic queue_count producer_group",
    "command_results": "admin_offset result",
}


def rows_of_decision(decision: Decision) -> Rows:
    return {
        name: _sorted(_rows(getattr(decision, name).to_pylist(), columns))
        for name, columns in COLUMNS.items()
    }


def rows_of_model(expected: dict[str, list[Row]]) -> Rows:
    places = {
        coordinate(row): row
        for row in expected["placements"]
        if row["source"] == "half" and row["topic"] == row["real_topic"]
    }

    outcomes = []
    for row in expected["outcomes"]:
        place = places.get(coordinate(row), {}) if row["outcome"] == "COMMITTED" else {}
        names = ("real_queue_id", "real_queue_offset")
        outcomes.append({**row, **{name: place.get(name) for name in names}})

    return {
        name: _sorted(_rows({**expected, "outcomes": outcomes}[name], columns))
        for name, columns in COLUMNS.items()
    }


def state_of_checker(state: State, queues: list[Row]) -> Rows:
    halves = state.halves.to_pylist()
    unit = "stored_at age_from_at check_times unacknowledged checked_at last_answer_at"

    return {
        "members": _sorted(_rows(halves, "queue_id queue_offset unit_offset arm discard_cause")),
        "units": _sorted(
            _rows(
                [row for row in halves if row["queue_offset"] == row["unit_offset"]],
                f"queue_id queue_offset {unit}",
            )
        ),
        "waiting": _waiting(state.waiting.to_pylist(), queues),
        "still delayed": _sorted(_rows(state.delayed.to_pylist(), COLUMNS["delayed"])),
        "topics": _sorted(_rows(state.topics.to_pylist(), "topic queue_count producer_group")),
        "next offsets": _sorted(
            _rows(state.next_offsets.to_pylist(), "topic queue_id next_offset")
        ),
    }


def state_of_model(model: Model, queues: list[Row]) -> Rows:
    units = model.pending()
    messages = model.messages

    return {
        "members": _sorted(
            (*coordinate(half), unit.first["queue_offset"], unit.arm, unit.discard_cause)
            for unit in units
            for half in unit.halves
        ),
        "units": _sorted(
            (
                *coordinate(unit.first),
                unit.stored_at,
                unit.age_from_at,
                unit.check_times,
                unit.unacknowledged,
                unit.checked_at,
                unit.answer and unit.answer[1],
            )
            for unit in units
        ),
        "waiting": _waiting(model.operations.waiting, queues),
        "still delayed": _sorted(_rows(list(messages.delayed.values()), COLUMNS["delayed"])),
        "topics": _sorted(
            (topic, count, messages.makers.get(topic)) for topic, count in messages.topics.items()
        ),
        "next offsets": _sorted((*place, end) for place, end in messages.ends.items()),
    }


def _waiting(namings: list[Row], queues: list[Row]) -> list[Any]:
    """Return what is early by position, and what waits for its set by operation.

    Which positions of an operation are kept while its set is incomplete is nobody's business: the
    conflicts show it in the end.
    """
    half_ends = {row["queue_id"]: row["half_end"] for row in queues}
    rows = set()
    for row in namings:
        is_early = row["half_queue_offset"] >= half_ends[row["queue_id"]]
        place = (row["position"], row["half_queue_offset"]) if is_early else None
        rows.add((row["queue_id"], row["op_queue_offset"], row["decision"], place))
    return _sorted(rows)


def _rows(rows: list[Row], columns: str) -> list[Any]:
    return [
        tuple(tuple(v) if isinstance(v := row[name], list) else v for name in columns.split())
        for row in rows
    ]


def _sorted(rows: Any) -> list[Any]:
    return sorted(rows, key=repr)
