"""Every vector of the decision rules, through the plain-Python model."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.model import Model
from tests.vectors import (
    SCENARIOS,
    T_MS,
    actions_of,
    half_row,
    is_old,
    operation_row,
    parameters_of,
    state_row,
)

Row = dict[str, Any]


class _Frame(list[Row]):
    """Rows that can be asked for like those of a frame."""

    def to_pylist(self) -> list[Row]:
        return list(self)


def _epoch(scenario: Row, halves: list[Row], operations: list[Row], known_at: int | None) -> Row:
    half_end = 1 + max((half["queue_offset"] for half in scenario["halves"]), default=-1)
    known = {"known_at": known_at, "halves_known_at": T_MS}
    return {
        "at": T_MS,
        "queues": [{"queue_id": 0, "half_end": half_end, **known}],
        "halves": halves,
        "operations": operations,
        "schedules": [],
        "commands": [],
    }


def _run(scenario: Row) -> tuple[Model, dict[str, list[Row]]]:
    """Land what has a history in an epoch to which nothing is known, then decide the vector."""
    model = Model()
    parameters = dataclasses.asdict(parameters_of(scenario))
    old = [half for half in scenario["halves"] if is_old(half)]
    model.decide(_epoch(scenario, [half_row(half) for half in old], [], None), parameters)
    for row in map(state_row, old):
        unit = model.unit_of[0, row["queue_offset"]]
        unit.check_times, unit.checked_at = row["check_times"], row["checked_at"]
        unit.discard_cause = row["discard_cause"]
    new = [half_row(half) for half in scenario["halves"] if not is_old(half)]
    operations = [operation_row(row) for row in scenario["operations"]]
    known_at = T_MS - scenario["config"].get("c_behind_ms", 0)
    return model, model.decide(_epoch(scenario, new, operations, known_at), parameters)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_model_decides_vector_as_the_rules_say(name: str) -> None:
    scenario = SCENARIOS[name]
    model, decided = _run(scenario)
    decision: Any = SimpleNamespace(
        due=_Frame(decided["due"]),
        delayed=_Frame(decided["delayed"]),
        outcomes=_Frame(decided["outcomes"]),
        state=SimpleNamespace(waiting=_Frame(model.operations.waiting)),
    )
    assert actions_of(scenario, decision) == scenario["expect"], scenario["why"]
    conflicts = [
        [row["op_queue_offset"], row["half_queue_offset"], row["reason"]]
        for row in decided["conflicts"]
    ]
    assert sorted(conflicts, key=repr) == sorted(scenario["conflicts"], key=repr)
