"""Which operation ends a half: an operation without an id (test 6), one after its deadline (7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cases import Result, case, table
from tests.support.history import START_AT
from tests.support.steps import (
    Step,
    commit,
    half,
    later,
    member,
    parameters,
    resend,
    rollback,
    unknown,
)

REQUIRED = parameters(require_transaction_id=True)
IN_TIME = parameters(reject_after_immunity=True)
HALF_AT = START_AT - 500  # of a half in the first epoch
SLOW: dict[str, Any] = {"immunity_ms": 10_000}
AT_LAST = {"stored_at": HALF_AT + 10_000}  # the deadline of a slow half in the first epoch
TOO_LATE = {"stored_at": HALF_AT + 10_001}
ANSWER = {"cause": "check_answer"}
OPERATOR = {"cause": "operator"}

WITHOUT_ID = [
    case(
        given=[REQUIRED, half(), half(), commit(0), commit(1, transaction_ids=["tx1"])],
        expected={0: "WAITS", 1: "COMMITTED", "conflicts": [(0, 0, "no_transaction_id")]},
        why="a producer's operation that names no transaction ends none",
    ),
    case(
        given=[REQUIRED, half(), half(), commit(0, 1)],
        expected={0: "WAITS", 1: "WAITS",
                  "conflicts": [(0, 0, "no_transaction_id"), (0, 1, "no_transaction_id")]},
        why="a conflict for each half it names",
    ),
    case(
        given=[REQUIRED, half(), commit(0, **ANSWER), unknown(0, **ANSWER)],
        expected={0: "WAITS",
                  "conflicts": [(0, 0, "no_transaction_id"), (1, 0, "no_transaction_id")]},
        why="answers to checks, and UNKNOWN, name their transaction, too",
    ),
    case(
        given=[REQUIRED, half(), commit(0, **OPERATOR)],
        expected={0: "COMMITTED operator"},
        why="an operator's operation needs none",
    ),
    case(
        given=[half(), commit(0)],
        expected={0: "COMMITTED"},
        why="where no id is required, none is needed",
    ),
    case(
        given=[REQUIRED, half(), commit(0, is_signed=False)],
        expected={0: "WAITS", "conflicts": [(0, 0, "bad_signature")]},
        why="test 5 comes before test 6",
    ),
    case(
        given=[REQUIRED, commit(0), commit(0, **OPERATOR), later(), half()],
        expected={0: "COMMITTED operator", "conflicts": [(0, 0, "no_transaction_id")]},
        why="an operation that waits for its half keeps what it lacks, and who wrote it",
    ),
    case(
        given=[member(0, 2), commit(0), later(require_transaction_id=True), member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED"},
        why="an operation that waits for its set has passed test 6 and is not tested again",
    ),
    case(
        given=[REQUIRED, member(0, 2), commit(9), rollback(0, transaction_ids=["set"])],
        expected={0: "ROLLED_BACK", "waiting": [0]},
        why="a ROLLBACK does not wait behind an operation that will fail test 6",
    ),
]  # fmt: skip
AFTER_IMMUNITY = [
    case(
        given=[IN_TIME, half(**SLOW), later(9_800), commit(0, **AT_LAST)],
        expected={0: "COMMITTED"},
        why="the deadline is reached, not exceeded",
    ),
    case(
        given=[IN_TIME, half(**SLOW), later(9_800), commit(0, **TOO_LATE)],
        expected={0: "CHECK 1", "conflicts": [(0, 0, "after_immunity")]},
        why="the deadline is exceeded: the check decides",
    ),
    case(
        given=[IN_TIME, half(**SLOW), later(9_800), rollback(0, **TOO_LATE)],
        expected={0: "CHECK 1", "conflicts": [(0, 0, "after_immunity")]},
        why="a ROLLBACK has the same deadline",
    ),
    case(
        given=[half(**SLOW), later(9_800), commit(0, **TOO_LATE)],
        expected={0: "COMMITTED"},
        why="without reject_after_immunity there is no deadline",
    ),
    case(
        given=[IN_TIME, half(), later(3_600_000), commit(0)],
        expected={0: "COMMITTED"},
        why="a half that asks for no immunity has no deadline",
    ),
    case(
        given=[IN_TIME, half(**SLOW), later(9_800), commit(0, **TOO_LATE, **ANSWER)],
        expected={0: "COMMITTED check_answer"},
        why="the answer to a check has no deadline",
    ),
    case(
        given=[IN_TIME, half(**SLOW), later(9_800), rollback(0, **TOO_LATE, **OPERATOR)],
        expected={0: "ROLLED_BACK operator"},
        why="an operator has no deadline",
    ),
    case(
        given=[IN_TIME, half(**SLOW), later(9_800), unknown(0, **TOO_LATE)],
        expected={0: "CHECK 1"},
        why="UNKNOWN is no end",
    ),
    case(
        given=[IN_TIME, half(immunity_ms=0), commit(0), commit(0, **ANSWER)],
        expected={0: "COMMITTED check_answer", "conflicts": [(0, 0, "after_immunity")]},
        why="an immunity of 0 says that only a check decides",
    ),
    case(
        given=[IN_TIME, half(**SLOW), commit(0), later(9_800), commit(0, **TOO_LATE)],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "after_immunity")]},
        why="test 7 comes before test 8, for a half that ended in an earlier epoch",
    ),
    case(
        given=[IN_TIME, half(**SLOW), commit(0), commit(0, **TOO_LATE)],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "after_immunity")]},
        why="test 7 comes before test 8, in one epoch",
    ),
    case(
        given=[IN_TIME, half(**SLOW), commit(0, **TOO_LATE, transaction_ids=["nope"])],
        expected={0: "WAITS", "conflicts": [(0, 0, "wrong_transaction_id")]},
        why="test 6 comes before test 7",
    ),
    case(
        given=[IN_TIME, commit(0, **TOO_LATE), later(1_000), half(age_ms=1_500, **SLOW)],
        expected={0: "WAITS", "conflicts": [(0, 0, "after_immunity")]},
        why="an operation that waited for its half keeps its own stored_at",
    ),
    case(
        given=[IN_TIME, half(**SLOW), later(5_000), resend("half:0-0"), later(5_000),
               commit(0, **TOO_LATE)],
        expected={0: "WAITS", "conflicts": [(0, 0, "after_immunity")]},
        why="a re-arm gives the half its immunity anew, and no other deadline",
    ),
    case(
        given=[IN_TIME, member(1, 2, **SLOW), later(9_800), member(0, 2, immunity_ms=3_600_000),
               commit(1, **TOO_LATE)],
        expected={0: "CHECK 1", 1: "WITH 0", "conflicts": [(0, 1, "after_immunity")]},
        why="a set has the deadline of its first landed half",
    ),
    case(
        given=[IN_TIME, member(1, 2), later(9_800), member(0, 2, immunity_ms=0), commit(1)],
        expected={0: "COMMITTED", 1: "COMMITTED"},
        why="a set whose first landed half asks for no immunity has no deadline",
    ),
    case(
        given=[IN_TIME, member(0, 2, **SLOW), commit(0), later(9_800), member(1, 2), later(),
               commit(1, **TOO_LATE), commit(1, **AT_LAST)],
        expected={0: "COMMITTED", 1: "COMMITTED",
                  "conflicts": [(1, 1, "after_immunity"), (2, 1, "duplicate_end")]},
        why="a set that ended keeps its deadline",
    ),
    case(
        given=[member(0, 2, immunity_ms=0), commit(0), later(reject_after_immunity=True),
               member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED"},
        why="an operation that waits for its set has passed test 7 and is not tested again",
    ),
    case(
        given=[IN_TIME, member(0, 2, **SLOW), commit(9, **TOO_LATE),
               rollback(0, **AT_LAST)],
        expected={0: "ROLLED_BACK", "waiting": [0]},
        why="a ROLLBACK does not wait behind an operation that will fail test 7",
    ),
]  # fmt: skip


@table([*WITHOUT_ID, *AFTER_IMMUNITY])
def test_an_operation(given: Sequence[Step], expected: dict[Any, Any]) -> None:
    assert Result(given).ends() == expected
