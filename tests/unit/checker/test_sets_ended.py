"""What ends a set: docs/protocol/rules.md "Sets", 4 to 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cases import Result, case, table
from tests.support.decided_rows import decided_rows
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
    world_of,
)

DUPLICATE = "ROLLED_BACK duplicate_in_set"
TWO_OF_THREE = [member(0, 3), member(1, 3)]
ENDED = [member(0, 2), member(1, 2), commit(0), later()]
NAMED_ONCE = [
    case(
        given=[*TWO_OF_THREE, member(2, 3), commit(2, 0, 1)],
        expected=dict.fromkeys(range(3), "COMMITTED"),
        why="4. other positions of the operation are no conflict",
    ),
    case(
        given=[*TWO_OF_THREE, member(2, 3), commit(0, 1, 1, 0)],
        expected=dict.fromkeys(range(3), "COMMITTED"),
        why="4. so is the same half once more",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0, 1, 1), later(), member(2, 3)],
        expected=dict.fromkeys(range(3), "COMMITTED"),
        why="4. ... also where the operation waits",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0), rollback(0, 1, 1), later(), member(2, 3)],
        expected={**dict.fromkeys(range(3), "COMMITTED"), "conflicts": [(1, 0, "conflicting_end")]},
        why="4. where the operation lost, there is one conflict",
    ),
    case(
        given=[*TWO_OF_THREE, commit(1, 0, producer_group="other")],
        expected={0: "WAITS", 1: "WAITS", "conflicts": [(0, 1, "wrong_producer_group")]},
        why="4. one conflict for another group's set, too",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0, 1, is_signed=False)],
        expected={0: "WAITS", 1: "WAITS", "conflicts": [(0, 0, "bad_signature")]},
        why="4. one conflict for a set without a valid signature",
    ),
    case(
        given=[member(0, 2), member(1, 2), commit(0, 1, transaction_ids=["nope", "set"])],
        expected={0: "WAITS", 1: "WAITS", "conflicts": [(0, 0, "wrong_transaction_id")]},
        why="4. the first position decides: a wrong id there, and the right one later is absorbed",
    ),
    case(
        given=[member(0, 2), member(1, 2), commit(0, 1, transaction_ids=["set", "nope"])],
        expected={0: "COMMITTED", 1: "COMMITTED"},
        why="4. the first position decides: the right id there, and a wrong one later is absorbed",
    ),
    case(
        given=[*TWO_OF_THREE, half(), commit(0, 2, 1)],
        expected={0: "WAITS", 1: "WAITS", 2: "COMMITTED", "waiting": [0]},
        why="4. another half between two of the set is decided for itself",
    ),
    case(
        given=[member(0, 1), commit(0, 0)],
        expected={0: "COMMITTED"},
        why="4. a set of one that is named twice: the second naming is absorbed",
    ),
    case(
        given=[member(0, 2), member(1, 2), commit(0, 2), later(), member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: DUPLICATE},
        why="4. a position whose half lands later in the set that its operation ended is absorbed",
    ),
    case(
        given=[*ENDED, commit(0, 2), later(), member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: DUPLICATE,
                  "conflicts": [(1, 0, "duplicate_end")]},
        why="D40, 4. ... and one whose operation is a duplicate_end for the set",
    ),
    case(
        given=[*ENDED, rollback(2, 0), later(), member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: DUPLICATE,
                  "conflicts": [(1, 0, "conflicting_end")]},
        why="4. ... or a conflicting_end, though the position that waited comes first",
    ),
    case(
        given=[*ENDED, commit(0, 2, producer_group="other"), later(), member(1, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: DUPLICATE,
                  "conflicts": [(1, 0, "wrong_producer_group")]},
        why="4. ... or a wrong_producer_group",
    ),
    case(
        given=[member(0, 2), commit(0, 1, transaction_ids=["nope", "set"]), later(), member(1, 2)],
        expected={0: "WAITS", 1: "WAITS", "conflicts": [(0, 0, "wrong_transaction_id")]},
        why="4. ... or a wrong_transaction_id: the right id comes too late",
    ),
    case(
        given=[member(0, 2), commit(0, 1, is_signed=False), later(), member(1, 2)],
        expected={0: "WAITS", 1: "WAITS", "conflicts": [(0, 0, "bad_signature")]},
        why="4. ... or a bad_signature",
    ),
    case(
        given=[member(0, 2), unknown(0, 1, transaction_ids=["set", "nope"]), later(),
               member(1, 2)],
        expected={0: "WAITS", 1: "WAITS"},
        why="4. ... or was heard, an UNKNOWN",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0, 2), later(), member(1, 3), later(), member(2, 3),
               later(), rollback(0)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: DUPLICATE, 3: "COMMITTED",
                  "conflicts": [(1, 0, "conflicting_end")]},
        why="4. ... or waits for the set: a duplicate that lands is absorbed",
    ),
    case(
        given=[*ENDED, commit(0, 2, 3, 4), later(), half(), later(), member(0, 2), later(),
               member(0, 2)],
        expected={0: "COMMITTED", 1: "COMMITTED", 2: "COMMITTED", 3: DUPLICATE, 4: DUPLICATE,
                  "conflicts": [(1, 0, "duplicate_end")]},
        why="4. what is decided goes on to the positions that still wait, epoch after epoch",
    ),
    case(
        given=[member(0, 2), commit(0, 1, transaction_ids=["nope", "set"]), rollback(0)],
        expected={0: "ROLLED_BACK", "conflicts": [(0, 0, "wrong_transaction_id")], "waiting": [0]},
        why="6. a ROLLBACK does not wait behind an operation that is decided for its set",
    ),
]  # fmt: skip
COMMITS = [
    case(
        given=[*TWO_OF_THREE, commit(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0]},
        why="D33, 5. COMMIT waits until the set is complete",
    ),
    case(
        given=[parameters(orphan_operation_ttl_ms=1_000), *TWO_OF_THREE, commit(0), later(5_000)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0]},
        why="5. a COMMIT waits for its set without a time limit",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0), later(6_000)],
        expected={0: "CHECK 1", 1: "WITH 0", "waiting": [0]},
        why="5. checks go on while a COMMIT waits",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0), later(6_000), member(2, 3)],
        expected=dict.fromkeys(range(3), "COMMITTED"),
        why="5. the member that completes the set lets the COMMIT take effect",
    ),
]
ROLLBACKS = [
    case(
        given=[*TWO_OF_THREE, rollback(0)],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK"},
        why="D34, 6. ROLLBACK applies at once",
    ),
    case(
        given=[*TWO_OF_THREE, commit(0), rollback(0), later(), member(2, 3)],
        expected={**dict.fromkeys(range(3), "COMMITTED"),
                  "conflicts": [(1, 0, "conflicting_end")]},
        why="6. ROLLBACK waits behind a COMMIT of smaller offset that waits for the set",
    ),
    case(
        given=[*TWO_OF_THREE, commit(2), rollback(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0, 1]},
        why="6. it waits behind an operation without an id that waits for its half",
    ),
    case(
        given=[*TWO_OF_THREE, commit(2, transaction_ids=["set"]), rollback(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0, 1]},
        why="6. it waits behind one that carries the set's id for that half",
    ),
    case(
        given=[*TWO_OF_THREE, rollback(2), rollback(0)],
        expected={0: "WAITS", 1: "WAITS", "waiting": [0, 1]},
        why="6. a ROLLBACK that waits for its half is waited for, too",
    ),
    case(
        given=[*TWO_OF_THREE, commit(2, transaction_ids=["another"]), rollback(0)],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK", "waiting": [0]},
        why="6. it does not wait behind one that carries another id",
    ),
    case(
        given=[*TWO_OF_THREE, unknown(2), rollback(0)],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK", "waiting": [0]},
        why="6. it does not wait behind an UNKNOWN",
    ),
    case(
        given=[*TWO_OF_THREE, commit(2, producer_group="other"), rollback(0)],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK", "waiting": [0]},
        why="6. it does not wait behind another group's operation",
    ),
    case(
        given=[*TWO_OF_THREE, rollback(0), commit(2)],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK", "waiting": [1]},
        why="6. it does not wait for an operation of larger offset",
    ),
    case(
        given=[*TWO_OF_THREE, commit(2), rollback(0), later(), half()],
        expected={0: "ROLLED_BACK", 1: "ROLLED_BACK", 2: "COMMITTED"},
        why="6. what was waited for names another half: the ROLLBACK applies then",
    ),
    case(
        given=[*TWO_OF_THREE, commit(2), rollback(0), later(), member(2, 3)],
        expected={**dict.fromkeys(range(3), "COMMITTED"),
                  "conflicts": [(1, 0, "conflicting_end")]},
        why="6. what was waited for names the set: the smaller offset wins",
    ),
]  # fmt: skip


CASES = [*NAMED_ONCE, *COMMITS, *ROLLBACKS]


@table(CASES)
def test_the_end_of_a_set(given: Sequence[Step], expected: dict[Any, Any]) -> None:
    assert Result(given).ends() == expected


@table(
    [
        case(
            given=[member(0, 2), member(1, 2), commit(2), rollback(0), later(), member(1, 2)],
            expected={
                0: "ROLLED_BACK",
                1: "ROLLED_BACK",
                2: DUPLICATE,
                "conflicts": [(0, 2, "conflicting_end")],
            },
            why="6. a ROLLBACK of a complete set waits for no half to come",
        ),
    ]
)
def test_rollback_of_a_complete_set_waits_for_no_half_to_come(
    given: Sequence[Step], expected: dict[Any, Any]
) -> None:
    """Though a duplicate of the set could still land where a COMMIT waits."""
    assert Result(given).ends() == expected


def test_all_messages_of_a_set_are_delivered_in_the_epoch_that_completes_it_by_tran_seq() -> None:
    to_one_queue = {"real_queue_id": 0}
    told = Result(
        [
            member(2, 3, **to_one_queue),
            member(0, 3, **to_one_queue),
            commit(0),
            later(),
            member(1, 3, **to_one_queue),
        ]
    )
    assert told.epochs[0]["placements"] == []
    assert told.queues() == {"orders 0": ["half 0-1", "half 0-2", "half 0-0"]}


REFUSED = [
    parameters(check_max=0, late_end_policy="reject"), *TWO_OF_THREE, later(6_000),
    later(), commit(0, 1, 2), later(),
]  # fmt: skip
REFUSAL = {"conflicts": [(0, 0, "end_after_discard")]}


@table(
    [
        case(
            given=[*REFUSED, member(2, 3)],
            expected={**dict.fromkeys(range(3), "DISCARDED check_max"), **REFUSAL},
            why="it is absorbed where the last member lands",
        ),
        case(
            given=[*REFUSED, resume("half:0-0"), member(2, 3)],
            expected={**dict.fromkeys(range(3), "WAITS"), **REFUSAL},
            why="also in the epoch of a re-arm",
        ),
        case(
            given=[*REFUSED, resume("half:0-0"), later(), member(2, 3)],
            expected={**dict.fromkeys(range(3), "WAITS"), **REFUSAL},
            why="also after a re-arm",
        ),
    ]
)
def test_a_refused_commit_stays_refused_when_its_last_member_lands_after_a_resume(
    given: Sequence[Step], expected: dict[Any, Any]
) -> None:
    assert Result(given).ends() == expected


@table(
    [
        case(
            given=[*REFUSED, resume("half:0-0"), member(2, 3), commit(2)],
            expected={**dict.fromkeys(range(3), "COMMITTED"), **REFUSAL},
            why="a new COMMIT ends what an older one was refused for",
        ),
        case(
            given=[*REFUSED, resume("half:0-0"), rollback(1)],
            expected={0: "ROLLED_BACK", 1: "ROLLED_BACK", **REFUSAL, "waiting": [0]},
            why="a ROLLBACK does not wait behind an operation that was refused",
        ),
        case(
            given=[*REFUSED, half("alone")],
            expected={**dict.fromkeys(range(2), "DISCARDED check_max"), 2: "COMMITTED", **REFUSAL},
            why="an operation that was refused for a set still ends a half of its own",
        ),
    ]
)
def test_a_refused_operation_holds_nothing_up(
    given: Sequence[Step], expected: dict[Any, Any]
) -> None:
    assert Result(given).ends() == expected


def test_what_waits_of_an_operation_says_for_which_sets_it_is_decided() -> None:
    (naming,) = decided_rows(world_of(REFUSED)).states[3].waiting.to_pylist()
    assert (naming["position"], naming["half_queue_offset"]) == (2, 2)
    assert naming["decided_sets"] == ["g/set/3"]


def test_the_first_position_that_waits_says_it_for_all_positions_of_its_operation() -> None:
    story = [
        member(0, 1, "a"),
        half("b"),
        commit(4, 0, 3, 1, 2),
        later(),
        member(0, 2, "c"),
        later(),
        half(),
        later(),
    ]
    states = decided_rows(world_of(story)).states
    found = {
        epoch: {row["half_queue_offset"]: row["decided_sets"] for row in state.waiting.to_pylist()}
        for epoch, state in states.items()
    }
    assert found == {
        1: {4: ["g/a/1"], 3: None, 2: None},
        2: {4: ["g/a/1", "g/c/2"], 3: None, 2: None},
        3: {4: ["g/a/1", "g/c/2"], 2: None},
        4: {4: ["g/a/1", "g/c/2"], 2: None},
    }
