"""What is there, below the floor and above: PROTOCOL.md "Retention"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checker.frames_ops import active
from tests.support.cases import Result, case, table
from tests.support.steps import (
    Step,
    cancel,
    commit,
    floor,
    half,
    later,
    member,
    parameters,
    rollback,
    unknown,
)

DUPLICATE = "ROLLED_BACK duplicate_in_set"
BOTH = {0: "COMMITTED", 1: DUPLICATE, 2: "COMMITTED"}
OPEN_SET = [member(0, 2), member(0, 2), later(), floor(2)]
DELAYED = [half(delay_level=1), commit(0), later(10), floor(1)]
GIVEN_UP = [parameters(check_max=0), member(0, 2, age_ms=6_001), member(0, 2), later()]
SETS = [
    case(
        given=[*OPEN_SET, commit(1), later(), member(1, 2)],
        expected=BOTH,
        why="a duplicate of a pending set is there below the floor: naming it names the set",
    ),
    case(
        given=[member(0, 2), member(0, 2), commit(1), later(), later(), floor(2), later(),
               member(1, 2)],
        expected=BOTH,
        why="a COMMIT that waits, and named the duplicate alone, is not dropped by the floor",
    ),
    case(
        given=[*OPEN_SET, member(1, 2), commit(0), later(), commit(1)],
        expected={**BOTH, "conflicts": [(1, 1, "below_floor")]},
        why="the set has left the state: its duplicate below the floor is there no more",
    ),
    case(
        given=[*GIVEN_UP, floor(2), commit(0), commit(1)],
        expected={0: "DISCARDED check_max", 1: DUPLICATE,
                  "conflicts": [(0, 0, "below_floor"), (1, 1, "below_floor")]},
        why="a discarded set that the floor has passed is there no more, nor are its duplicates",
    ),
    case(
        given=[*GIVEN_UP, floor(1), commit(1), later(), floor(2)],
        expected={0: "DISCARDED check_max", 1: DUPLICATE, "conflicts": [(0, 1, "conflicting_end")]},
        why="a duplicate does not keep its discarded set in the state",
    ),
    case(
        given=[*GIVEN_UP, commit(1), later(), floor(2), later(), member(1, 2)],
        expected={0: "COMMITTED late_end", 1: DUPLICATE, 2: "COMMITTED late_end"},
        why="a discarded set for which an operation waits is there as long as that waits",
    ),
]  # fmt: skip
HALVES = [
    case(
        given=[*DELAYED, commit(0), rollback(0), unknown(0)],
        expected={0: "COMMITTED, delayed",
                  "conflicts": [(1, 0, "duplicate_end"), (2, 0, "conflicting_end")]},
        why="a delayed half below the floor is there: the second COMMIT, a ROLLBACK, an UNKNOWN",
    ),
    case(
        given=[*DELAYED, commit(0, producer_group="other")],
        expected={0: "COMMITTED, delayed", "conflicts": [(1, 0, "wrong_producer_group")]},
        why="... and all tests hold",
    ),
    case(
        given=[*DELAYED, later(2_000), commit(0), later(), commit(0)],
        expected={0: "COMMITTED",
                  "conflicts": [(1, 0, "duplicate_end"), (2, 0, "below_floor")]},
        why="... until it is delivered; in the epoch that delivers it, it is there",
    ),
    case(
        given=[*DELAYED, cancel("half:0-0"), commit(0)],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "below_floor")]},
        why="... or cancelled; commands come before the operations of their epoch",
    ),
    case(
        given=[half(), later(), floor(1), commit(0)],
        expected={0: "COMMITTED"},
        why="a pending half below the floor is there",
    ),
    case(
        given=[half(), commit(0), later(), floor(1), commit(0)],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "below_floor")]},
        why="an ended one is not",
    ),
    case(
        given=[half(), commit(0), later(), floor(0), commit(0)],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "duplicate_end")]},
        why="the floor itself is above the floor",
    ),
    case(
        given=[member(0, 2, delay_level=1), member(1, 2), commit(0), later(10), floor(2),
               member(1, 2), rollback(0, 2)],
        expected={0: "COMMITTED, delayed", 1: "COMMITTED", 2: DUPLICATE,
                  "conflicts": [(1, 0, "conflicting_end")]},
        why="of a committed set the delayed half is there: what lands now is a duplicate",
    ),
]  # fmt: skip


@table([*SETS, *HALVES])
@pytest.mark.parametrize("few_rows", [0, active.FEW_ROWS], ids=["large state", "small state"])
def test_what_is_there_below_the_floor(
    given: Sequence[Step], expected: dict[Any, Any], few_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "FEW_ROWS", few_rows)
    assert Result(given).ends() == expected


def test_a_duplicate_names_its_set_however_large_the_state_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active, "FEW_ROWS", 0)
    told = Result([member(0, 2), member(0, 2), member(1, 2), later(), commit(1)])
    assert told.ends() == BOTH
