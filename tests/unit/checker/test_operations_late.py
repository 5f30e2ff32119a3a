"""An end that comes after the discard: it still counts, or is refused, as the policy says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cases import Result, case, table
from tests.support.steps import (
    Step,
    commit,
    half,
    later,
    parameters,
    resume,
    rollback,
    unknown,
)

GIVEN_UP = [parameters(check_max=0), half(age_ms=6_001), later()]
REJECT = parameters(late_end_policy="reject")
CASES = [
    case(
        given=[*GIVEN_UP, commit(0)],
        expected={0: "COMMITTED late_end"},
        why="D25: a late COMMIT after a discard, policy apply",
    ),
    case(
        given=[*GIVEN_UP, rollback(0)],
        expected={0: "ROLLED_BACK late_end"},
        why="a late ROLLBACK after a discard, policy apply",
    ),
    case(
        given=[*GIVEN_UP, commit(0, cause="check_answer")],
        expected={0: "COMMITTED late_end"},
        why="a check's answer after the discard is a late end",
    ),
    case(
        given=[*GIVEN_UP, commit(0, cause="operator")],
        expected={0: "COMMITTED late_end"},
        why="an operator's end after the discard is a late end",
    ),
    case(
        given=[*GIVEN_UP, commit(0), later(), commit(0), rollback(0)],
        expected={0: "COMMITTED late_end",
                  "conflicts": [(1, 0, "duplicate_end"), (2, 0, "conflicting_end")]},
        why="after a late end the first end stands, as after any",
    ),
    case(
        given=[parameters(check_max=0), half(age_ms=6_001), commit(0)],
        expected={0: "COMMITTED"},
        why="an end in the epoch that would discard it is no late end",
    ),
    case(
        given=[REJECT, *GIVEN_UP, commit(0)],
        expected={0: "DISCARDED check_max", "conflicts": [(0, 0, "end_after_discard")]},
        why="D26: a late end after a discard, policy reject",
    ),
    case(
        given=[REJECT, *GIVEN_UP, unknown(0)],
        expected={0: "DISCARDED check_max"},
        why="an UNKNOWN after the discard is no conflict",
    ),
    case(
        given=[REJECT, *GIVEN_UP, commit(0), rollback(0)],
        expected={0: "DISCARDED check_max",
                  "conflicts": [(0, 0, "end_after_discard"), (1, 0, "end_after_discard")]},
        why="every end after the discard is refused, policy reject",
    ),
    case(
        given=[REJECT, *GIVEN_UP, commit(0), later(), resume("half:0-0")],
        expected={0: "WAITS", "conflicts": [(0, 0, "end_after_discard")]},
        why="what was refused stays refused when the half is re-armed",
    ),
    case(
        given=[REJECT, *GIVEN_UP, resume("half:0-0"), commit(0)],
        expected={0: "COMMITTED"},
        why="commands come before the operations of their epoch: it is pending again, then ended",
    ),
]  # fmt: skip


@table(CASES)
def test_an_end_after_the_discard(given: Sequence[Step], expected: dict[Any, Any]) -> None:
    assert Result(given).ends() == expected
