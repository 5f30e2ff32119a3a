"""Which operation ends a half: the protocol's tests 1 to 8, in their order, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cases import Result, case, table
from tests.support.steps import (
    Step,
    commit,
    half,
    known,
    later,
    parameters,
    rollback,
    unknown,
    unreadable_operation,
)

GIVEN_UP = [parameters(check_max=0), half(age_ms=6_001), later()]
REJECT = parameters(late_end_policy="reject")
TEST_1 = [
    case(
        given=[half(age_ms=10_000), half(), unreadable_operation("abc"), unreadable_operation(""),
               unreadable_operation("0", tran_type="99"), commit(1)],
        expected={0: "CHECK 1", 1: "COMMITTED",
                  "conflicts": [(n, None, "unreadable_operation") for n in range(3)]},
        why="D23: unreadable operations change nothing and hold nothing up; one row a record",
    ),
]  # fmt: skip
TEST_2 = [
    case(
        given=[half(), half(skipped=1), commit(1)],
        expected={0: "WAITS", 2: "WAITS", "conflicts": [(0, 1, "unknown_half")]},
        why="below the landed end no half stands there: unknown_half",
    ),
    case(
        given=[half(), commit(7), commit(0)],
        expected={0: "COMMITTED", "waiting": [0]},
        why="D18: an operation can come before its half has landed: it waits",
    ),
    case(
        given=[half(), commit(1)],
        expected={0: "WAITS", "waiting": [0]},
        why="the landed end itself is still to come: it waits",
    ),
    case(
        given=[commit(0), later(), half()],
        expected={0: "COMMITTED"},
        why="it is tried again in every epoch: it ends its half when that lands",
    ),
    case(
        given=[commit(0), later(), half(skipped=1)],
        expected={1: "WAITS", "conflicts": [(0, 0, "unknown_half")]},
        why="the log goes on beyond what it names: unknown_half",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=5_000), commit(0), later(5_000)],
        expected={"waiting": [0]},
        why="the time for orphans is reached: it still waits",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=5_000), commit(0), later(5_001)],
        expected={"conflicts": [(0, 0, "orphan_expired")]},
        why="the time for orphans is exceeded",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=5_000), unknown(0), later(5_001)],
        expected={"conflicts": [(0, 0, "orphan_expired")]},
        why="an UNKNOWN waits no longer than others",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=5_000), commit(0), later(9_000), known(0, 4_000)],
        expected={"waiting": [0]},
        why="halves_known_at has reached the time for orphans, epoch_at has exceeded it",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=5_000), commit(0), later(9_000), known(0, None)],
        expected={"waiting": [0]},
        why="while halves_known_at is null an operation waits",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=5_000), commit(0), later(5_001), half()],
        expected={0: "COMMITTED"},
        why="a half that lands when the time for orphans is over is ended all the same",
    ),
    case(
        given=[half(), half(queue=1), commit(0, queue=1)],
        expected={0: "WAITS", "1-0": "COMMITTED"},
        why="an operation names halves of its own queue only",
    ),
]
TEST_3 = [
    case(
        given=[half(error="bad_real_topic"), half(), commit(0, 1)],
        expected={0: "UNREADABLE", 1: "COMMITTED", "conflicts": [(0, 0, "unreadable_half")]},
        why="D37: an operation on a half that could not be read",
    ),
    case(
        given=[half(error="bad_real_topic"), commit(0, producer_group="other")],
        expected={0: "UNREADABLE", "conflicts": [(0, 0, "unreadable_half")]},
        why="test 3 comes before test 4",
    ),
    case(
        given=[half(error="bad_real_topic"), unknown(0)],
        expected={0: "UNREADABLE", "conflicts": [(0, 0, "unreadable_half")]},
        why="tests 1 to 6 hold for an UNKNOWN, too",
    ),
    case(
        given=[half(error="bad_real_topic"), later(), commit(0)],
        expected={0: "UNREADABLE", "conflicts": [(0, 0, "unreadable_half")]},
        why="a half that could not be read stays so in later epochs",
    ),
]
TESTS_4_AND_5_AND_6 = [
    case(
        given=[half(age_ms=10_000), half(), commit(0, producer_group="other"),
               rollback(1, producer_group="other"), commit(1)],
        expected={0: "CHECK 1", 1: "COMMITTED",
                  "conflicts": [(0, 0, "wrong_producer_group"), (1, 1, "wrong_producer_group")]},
        why="D16: another group's operation changes nothing, and does not count as first",
    ),
    case(
        given=[half(age_ms=10_000), commit(0, transaction_ids=["nope"])],
        expected={0: "CHECK 1", "conflicts": [(0, 0, "wrong_transaction_id")]},
        why="D17: a wrong transaction id changes nothing",
    ),
    case(
        given=[half(), half(), commit(0, 1, transaction_ids=["tx0", "nope"])],
        expected={0: "COMMITTED", 1: "WAITS", "conflicts": [(0, 1, "wrong_transaction_id")]},
        why="D38: ids in a batched operation are verified one by one",
    ),
    case(
        given=[half(), commit(0, producer_group="other", transaction_ids=["nope"])],
        expected={0: "WAITS", "conflicts": [(0, 0, "wrong_producer_group")]},
        why="test 4 comes before test 6",
    ),
    case(
        given=[half(age_ms=10_000), half(), commit(0, is_signed=False), commit(1, is_signed=False),
               rollback(1, is_signed=True)],
        expected={0: "CHECK 1", 1: "ROLLED_BACK",
                  "conflicts": [(0, 0, "bad_signature"), (1, 1, "bad_signature")]},
        why="an operation without a valid signature changes nothing, and does not count as first",
    ),
    case(
        given=[half(age_ms=10_000), unknown(0, is_signed=False)],
        expected={0: "CHECK 1", "conflicts": [(0, 0, "bad_signature")]},
        why="a forged UNKNOWN is no answer",
    ),
    case(
        given=[half(), commit(0), half(), commit(1, is_signed=True)],
        expected={0: "COMMITTED", 1: "COMMITTED"},
        why="where the group had no key when it landed, no signature is asked for",
    ),
    case(
        given=[half(), commit(0, producer_group="other", is_signed=False)],
        expected={0: "WAITS", "conflicts": [(0, 0, "wrong_producer_group")]},
        why="test 4 comes before test 5",
    ),
    case(
        given=[half(), commit(0, is_signed=False, transaction_ids=["nope"])],
        expected={0: "WAITS", "conflicts": [(0, 0, "bad_signature")]},
        why="test 5 comes before test 6",
    ),
    case(
        given=[commit(0, is_signed=False), later(), half()],
        expected={0: "WAITS", "conflicts": [(0, 0, "bad_signature")]},
        why="an operation that waits for its half keeps what was found when it landed",
    ),
    case(
        given=[half(), commit(0), commit(0, transaction_ids=["nope"])],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "wrong_transaction_id")]},
        why="test 6 comes before test 8",
    ),
    case(
        given=[half(), commit(0), later(), commit(0, producer_group="other")],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "wrong_producer_group")]},
        why="a half that was ended in an earlier epoch is compared with its stored row",
    ),
]  # fmt: skip
TEST_7 = [
    case(
        given=[half(), half(), commit(0), commit(0), rollback(0), rollback(1), commit(1)],
        expected={0: "COMMITTED", 1: "ROLLED_BACK",
                  "conflicts": [(1, 0, "duplicate_end"), (2, 0, "conflicting_end"),
                                (4, 1, "conflicting_end")]},
        why="D13: the first end wins; the same again is harmless, the other one is a conflict",
    ),
    case(
        given=[half(), commit(0), later(), commit(0), rollback(0)],
        expected={0: "COMMITTED",
                  "conflicts": [(1, 0, "duplicate_end"), (2, 0, "conflicting_end")]},
        why="the first end wins, also over ends of later epochs",
    ),
    case(
        given=[half(), rollback(0), later(), rollback(0), commit(0)],
        expected={0: "ROLLED_BACK",
                  "conflicts": [(1, 0, "duplicate_end"), (2, 0, "conflicting_end")]},
        why="a rollback wins over ends of later epochs, too",
    ),
    case(
        given=[half(), rollback(0, op_queue_offset=9), commit(0, op_queue_offset=4)],
        expected={0: "COMMITTED", "conflicts": [(9, 0, "conflicting_end")]},
        why="the smallest op offset wins, in whatever order the rows come",
    ),
    case(
        given=[half(age_ms=10_000), half(), unknown(0), unknown(1)],
        expected={0: "CHECK 1", 1: "WAITS"},
        why="D14: UNKNOWN ends nothing",
    ),
    case(
        given=[half(age_ms=10_000), unknown(0), commit(0)],
        expected={0: "COMMITTED"},
        why="D15: UNKNOWN then COMMIT",
    ),
    case(
        given=[half(), half(), commit(0), unknown(0), rollback(1), unknown(1)],
        expected={0: "COMMITTED", 1: "ROLLED_BACK"},
        why="D29: a late UNKNOWN is no conflict",
    ),
    case(
        given=[*[half(age_ms=10_000)] * 3, commit(0, 1, 2)],
        expected=dict.fromkeys(range(3), "COMMITTED"),
        why="D12: one operation, many halves",
    ),
    case(
        given=[half(), commit(0, 0)],
        expected={0: "COMMITTED", "conflicts": [(0, 0, "duplicate_end")]},
        why="D36: a half named twice in one operation",
    ),
    case(
        given=[half(), commit(0, 0, 0)],
        expected={0: "COMMITTED", "conflicts": [(0, 0, "duplicate_end")] * 2},
        why="a half named three times in one operation: a row for each naming after the first",
    ),
    case(
        given=[half(), commit(0, 5), later(), commit(0)],
        expected={0: "COMMITTED", "conflicts": [(1, 0, "duplicate_end")], "waiting": [0]},
        why="each naming is decided by itself: one position takes effect, the other waits",
    ),
]  # fmt: skip
CAUSES = [
    case(
        given=[half(), half(), commit(0, cause="check_answer"), rollback(1, cause="check_answer")],
        expected={0: "COMMITTED check_answer", 1: "ROLLED_BACK check_answer"},
        why="the answer to a check ends a half as any operation does",
    ),
    case(
        given=[half(), half(), commit(0, cause="operator"), rollback(1, cause="operator")],
        expected={0: "COMMITTED operator", 1: "ROLLED_BACK operator"},
        why="an operator ends a half as any operation does",
    ),
    case(
        given=[half(), commit(0, cause="operator"), rollback(0, cause="check_answer")],
        expected={0: "COMMITTED operator", "conflicts": [(1, 0, "conflicting_end")]},
        why="who ends it does not matter for who comes first",
    ),
]
CASES = [*TEST_1, *TEST_2, *TEST_3, *TESTS_4_AND_5_AND_6, *TEST_7, *CAUSES]


@table(CASES)
def test_an_operation(given: Sequence[Step], expected: dict[Any, Any]) -> None:
    assert Result(given).ends() == expected


@table(
    [
        case(
            given=[half(), commit(0), rollback(0, 0)],
            expected={0: "COMMITTED", "conflicts": [(1, 0, "conflicting_end")] * 2},
            why="the other decision lost: conflicting_end twice",
        ),
        case(
            given=[half(), commit(0), later(), rollback(0, 0)],
            expected={0: "COMMITTED", "conflicts": [(1, 0, "conflicting_end")] * 2},
            why="also where it lost against an earlier epoch",
        ),
        case(
            given=[REJECT, *GIVEN_UP, commit(0, 0)],
            expected={0: "DISCARDED check_max", "conflicts": [(0, 0, "end_after_discard")] * 2},
            why="it came too late: end_after_discard twice",
        ),
    ]
)
def test_half_named_twice_by_an_operation_that_loses_has_the_losers_reason_twice(
    given: Sequence[Step], expected: dict[Any, Any]
) -> None:
    assert Result(given).ends() == expected


def test_the_operation_of_smallest_offset_is_the_one_that_is_recorded() -> None:
    told = Result([half(), unknown(0), commit(0), commit(0)])
    assert [row["op_queue_offset"] for row in told.rows("outcomes")] == [1]


def test_the_last_unknown_is_the_producers_last_answer() -> None:
    told = Result([half(), unknown(0, stored_at=111), unknown(0, stored_at=222)])
    ((*_, last_answer_at),) = told.state["units"]
    assert last_answer_at == 222
