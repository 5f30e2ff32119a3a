"""Which halves are one set, what time does to it, and late members.

Source: docs/protocol/rules.md "Sets".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from checker.frames_ops import sql
from tests.support.cases import Result, case, table
from tests.support.steps import (
    Step,
    commit,
    half,
    later,
    member,
    parameters,
    resume,
    rollback,
    unknown,
)

DUPLICATE = "ROLLED_BACK duplicate_in_set"
TWO_OF_THREE = [member(0, 3), member(1, 3)]
MEMBERSHIP = [
    case(
        given=[member(0, 2), member(1, 2), commit(0)],
        expected={0: "COMMITTED", 1: "COMMITTED"},
        why="1. same half queue, producer group, transaction id and TRAN_SIZE: one set",
    ),
    case(
        given=[member(0, 2), member(1, 2, queue=1), commit(0)],
        expected={0: "WAITS", "1-0": "WAITS", "waiting": [0]},
        why="1. another half queue: another set",
    ),
    case(
        given=[member(0, 2), member(1, 2, group="other"), commit(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0]},
        why="1. another producer group: another set",
    ),
    case(
        given=[member(0, 2), member(1, 2, "another"), commit(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0]},
        why="1. another transaction id: another set",
    ),
    case(
        given=[member(0, 2), member(1, 3), commit(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0]},
        why="1. another TRAN_SIZE: another set",
    ),
    case(
        given=[half("same"), half("same"), commit(0)],
        expected={0: "COMMITTED", 1: "WAITS"},
        why="1. without TRAN_SIZE a transaction id makes no set",
    ),
    case(
        given=[member(0, 1), half("set"), commit(0)],
        expected={0: "COMMITTED", 1: "WAITS"},
        why="1. a half without TRAN_SIZE is a duplicate of nothing",
    ),
    case(
        given=[
            member(0, 1),
            member(0, 1, "another"),
            member(0, 1, group="other"),
            member(0, 1, queue=1),
            commit(0),
        ],
        expected={0: "COMMITTED", 1: "WAITS", 2: "WAITS", "1-0": "WAITS"},
        why="1. TRAN_SIZE 1: sets of one, with a queue, a group and an id of their own",
    ),
    case(
        given=[*TWO_OF_THREE, member(2, 3, error="too_large"), commit(0)],
        expected={0: "WAITS", 1: "WAITS", 2: "UNREADABLE", "waiting": [0]},
        why="1. a half that cannot be read is in no set",
    ),
]
DUPLICATES = [
    case(
        given=[member(0, 2), member(0, 2)],
        expected={0: "WAITS", 1: DUPLICATE},
        why="2. of one TRAN_SEQ the smallest offset counts; the later one ends at once",
    ),
    case(
        given=[member(0, 2), later(), member(0, 2)],
        expected={0: "WAITS", 1: DUPLICATE},
        why="2. a duplicate that lands in a later epoch ends there",
    ),
    case(
        given=[member(0, 1), member(0, 1), commit(0)],
        expected={0: "COMMITTED", 1: DUPLICATE},
        why="D39, 2. a set of one: the half that is stored once more is no second message",
    ),
    case(
        given=[member(0, 1), later(), commit(0), later(), member(0, 1)],
        expected={0: "COMMITTED", 1: DUPLICATE},
        why="2. ... also when it lands after the set was ended",
    ),
    case(
        given=[member(0, 1), member(0, 1), commit(1)],
        expected={0: "COMMITTED", 1: DUPLICATE},
        why="3. ... and when it is the one that the operation names",
    ),
    case(
        given=[member(0, 1, age_ms=10_000), member(0, 1, age_ms=9_000)],
        expected={0: "CHECK 1", 1: DUPLICATE},
        why="2. ... and the group is asked about the first one alone",
    ),
    case(
        given=[member(0, 2), member(0, 2), commit(0)],
        expected={0: "WAITS", 1: DUPLICATE, "waiting": [0]},
        why="2. a duplicate does not complete its set",
    ),
    case(
        given=[member(0, 2), member(1, 2), commit(0), later(), member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: DUPLICATE},
        why="2. a duplicate of a set that is ended is rolled back, though the set was committed",
    ),
    case(
        given=[member(0, 2), member(0, 2), member(1, 2), commit(1)],
        expected={0: "COMMITTED", 1: DUPLICATE, 2: "COMMITTED"},
        why="3. naming a duplicate names its set",
    ),
    case(
        given=[member(0, 3), member(1, 3), member(2, 3), commit(1)],
        expected=dict.fromkeys(range(3), "COMMITTED"),
        why="D32, 3. naming any member names the set",
    ),
]
TIME = [
    case(
        given=[member(0, 2, age_ms=10_000), member(1, 2, age_ms=9_000)],
        expected={0: "CHECK 1", 1: "WITH 0"},
        why="D35, 7. one check asks for all members",
    ),
    case(
        given=[member(0, 2, age_ms=10_000, immunity_ms=60_000), member(1, 2, age_ms=9_000)],
        expected={0: "WAITS", 1: "WAITS"},
        why="7. immunity is that of the first landed half, though the second has none",
    ),
    case(
        given=[member(1, 2, age_ms=6_001), member(0, 2, age_ms=0)],
        expected={0: "CHECK 1", 1: "WITH 0"},
        why="7. stored_at is that of the first landed half, whatever its TRAN_SEQ",
    ),
    case(
        given=[member(0, 2, age_ms=6_000), member(1, 2, age_ms=6_001)],
        expected={0: "WAITS", 1: "WAITS"},
        why="7. a second member that was stored before the first does not count",
    ),
    case(
        given=[member(0, 3, age_ms=6_001), later(29_999), member(1, 3, age_ms=10_000)],
        expected={0: "WAITS", 1: "WAITS"},
        why="7. checked_at is that of the first landed half: a new member is not asked alone",
    ),
    case(
        given=[member(0, 3, age_ms=6_001), later(30_000), member(1, 3)],
        expected={0: "CHECK 2", 1: "WITH 0"},
        why="7. check_times is that of the first landed half",
    ),
]
LATE_MEMBERS = [
    case(
        given=[member(0, 2), rollback(0), later(), member(1, 2)],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK"},
        why="8. a member that lands after its set was rolled back is rolled back",
    ),
    case(
        given=[member(0, 2), rollback(0, cause="check_answer"), later(), member(1, 2)],
        expected={0: "ROLLED_BACK check_answer", 1: "ROLLED_BACK check_answer"},
        why="8. ... with the same cause",
    ),
    case(
        given=[parameters(check_max=0), member(0, 2, age_ms=6_001), later(), member(1, 2)],
        expected={0: "DISCARDED check_max", 1: "DISCARDED check_max"},
        why="8. a member that lands after its set was discarded is discarded with the same cause",
    ),
    case(
        given=[parameters(check_max=0), member(0, 2, age_ms=6_001), later(), member(1, 2),
               commit(0)],
        expected={0: "COMMITTED late_end", 1: "COMMITTED late_end"},
        why="8. ... unless an operation of its epoch ends the set",
    ),
    case(
        given=[parameters(check_max=0), member(0, 2, age_ms=6_001), later(), resume("half:0-0"),
               later(), member(1, 2)],
        expected={0: "WAITS", 1: "WAITS"},
        why="a re-armed set is pending again: a member that lands waits with it",
    ),
]  # fmt: skip
CASES = [*MEMBERSHIP, *DUPLICATES, *TIME, *LATE_MEMBERS]


@table(CASES)
def test_a_set(given: Sequence[Step], expected: dict[Any, Any]) -> None:
    assert Result(given).ends() == expected


def test_a_member_that_lands_after_its_set_has_the_same_operation_and_the_same_arm() -> None:
    rolled_back = Result([member(0, 2), half(), rollback(1), rollback(0), later(), member(1, 2)])
    (late,) = rolled_back.epochs[1]["outcomes"]
    assert (late["queue_offset"], late["op_queue_offset"]) == (2, 1)
    again = Result(
        [
            parameters(check_max=0),
            member(0, 2, age_ms=6_001),
            later(),
            resume("half:0-0"),
            later(6_001),
            later(),
            member(1, 2),
        ]
    )
    assert [(row["queue_offset"], row["arm"]) for row in again.rows("outcomes")] == [
        (0, 0),
        (0, 1),
        (1, 1),
    ]


def test_the_last_answer_of_a_set_is_the_one_that_was_stored_last() -> None:
    """Also when an earlier UNKNOWN waited for its half and is applied later."""
    told = Result(
        [
            member(0, 2),
            unknown(1, stored_at=111),
            unknown(0, stored_at=222),
            later(),
            member(1, 2),
        ]
    )
    ((_, first, *_, last_answer_at),) = told.state["units"]
    assert (first, last_answer_at) == (0, 222)


def test_sets_are_ranked_beside_what_waits_and_not_beside_all_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On few rows SQL is not optimized: a join with all operations takes their square."""
    waiting: list[int] = []

    def running(text: str, values: dict[str, Any], **frames: pa.Table) -> pa.Table:
        waiting.append(frames["waiting"].num_rows)
        return sql.run(text, values, **frames)

    monkeypatch.setattr("checker.rules.winner.run", running)
    told = Result([member(0, 2), member(1, 2), commit(0), half("alone"), commit(2), commit(9)])
    assert told.halves() == {0: "COMMITTED", 1: "COMMITTED", 2: "COMMITTED"}
    assert waiting == [1]  # the COMMIT of offset 9, which is not there yet


@pytest.mark.parametrize(
    ("early", "expected"),
    [
        pytest.param(
            [commit(1_000 + number, transaction_ids=[f"other{number}"]) for number in range(60)],
            "ROLLED_BACK",
            id="operations of other transactions",
        ),
        pytest.param(
            [commit(1_000 + number) for number in range(60)], "WAITS", id="operations without an id"
        ),
        pytest.param(
            [commit(*range(1_000, 1_060), transaction_ids=["set"] * 60)],
            "WAITS",
            id="one operation that names many halves",
        ),
    ],
)
def test_rollbacks_of_sets_meet_few_of_the_operations_that_wait(
    early: list[Step], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a group's sets would be compared with all of its operations that wait."""
    largest: list[int] = []

    def explaining(text: str, values: dict[str, Any], **frames: pa.Table) -> pa.Table:
        plan = sql.run(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", values, **frames)
        largest.append(max(_cardinalities(json.loads(plan["explain_value"][0].as_py()))))
        return sql.run(text, values, **frames)

    monkeypatch.setattr("checker.rules.winner.run", explaining)
    sets = [member(0, 2 + number, "set") for number in range(60)]
    told = Result([*sets, *early, *(rollback(offset) for offset in range(60))])
    assert set(told.halves().values()) == {expected}
    assert max(largest) < 10 * 60


def _cardinalities(node: dict[str, Any]) -> Iterator[int]:
    """Return how many rows each operator of a plan gave."""
    yield node.get("operator_cardinality", 0)
    for child in node["children"]:
        yield from _cardinalities(child)
