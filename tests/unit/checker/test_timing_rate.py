"""How many are asked about in an epoch, and who comes first: the rate is shared by groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cases import Result, case, table
from tests.support.comparison import Checker
from tests.support.steps import (
    Step,
    half,
    later,
    member,
    parameters,
)

CASES = [
    case(
        given=[parameters(check_rate_max=2), half(age_ms=9_000), half(age_ms=8_000),
               half(age_ms=7_000)],
        expected={0: "CHECK 1", 1: "CHECK 1", 2: "WAITS"},
        why="D24: the oldest are asked first, the rest waits",
    ),
    case(
        given=[parameters(check_rate_max=2), half(age_ms=9_000), half(age_ms=8_000),
               half(age_ms=7_000), later(1)],
        expected={0: "WAITS", 1: "WAITS", 2: "CHECK 1"},
        why="what the rate held back is asked in the next epoch and has lost no check",
    ),
    case(
        given=[parameters(check_rate_max=4), *[half(group="big", age_ms=90_000 - n)
                                               for n in range(6)], half(group="g", age_ms=7_000)],
        expected={**dict.fromkeys(range(3), "CHECK 1"), **dict.fromkeys(range(3, 6), "WAITS"),
                  6: "CHECK 1"},
        why="D31: the rate is shared by groups: one group's backlog does not starve another",
    ),
    case(
        given=[parameters(check_rate_max=1), half(age_ms=7_000), half(queue=1, age_ms=7_000)],
        expected={0: "CHECK 1", "1-0": "WAITS"},
        why="of two halves stored at once the one in the smaller queue is asked first",
    ),
    case(
        given=[parameters(check_rate_max=2), member(0, 2, age_ms=9_000), member(1, 2, age_ms=9_000),
               half(age_ms=8_000), half(age_ms=7_000)],
        expected={0: "CHECK 1", 1: "WITH 0", 2: "CHECK 1", 3: "WAITS"},
        why="a set counts once",
    ),
]  # fmt: skip


def test_the_due_checks_are_in_the_order_in_which_the_rate_takes_them() -> None:
    told = Result(
        [
            half(group="a", age_ms=9_000),
            half(group="a", age_ms=8_000),
            half(group="b", age_ms=8_500),
            half(group="b", age_ms=9_500),
            half(group="b", age_ms=9_500, queue=1),
        ]
    )
    (epoch,) = told.world["epochs"]  # what is told is sorted; the decision itself keeps the order
    due = Checker().decide(epoch, told.world["parameters"]).due.to_pylist()
    order = [(row["queue_id"], row["queue_offset"]) for row in due]
    assert order == [(0, 3), (0, 0), (1, 0), (0, 1), (0, 2)]


@table(CASES)
def test_the_rate_of_checks(given: Sequence[Step], expected: dict[Any, str]) -> None:
    assert Result(given).ends() == expected
