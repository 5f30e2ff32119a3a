"""Every vector of the decision rules, through the pure decision."""

from __future__ import annotations

import pytest

from tests.vectors import SCENARIOS, actions_of, run_scenario


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_vector_is_decided_as_the_rules_say(name: str) -> None:
    scenario = SCENARIOS[name]
    decision = run_scenario(scenario)
    assert actions_of(scenario, decision) == scenario["expect"], scenario["why"]
    conflicts = [
        [row["op_queue_offset"], row["half_queue_offset"], row["reason"]]
        for row in decision.conflicts.to_pylist()
    ]
    assert sorted(conflicts, key=repr) == sorted(scenario["conflicts"], key=repr)
