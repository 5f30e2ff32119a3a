"""Rules that are easily read otherwise, each as the smallest history, with the rule's sentence.

Most were found by random histories. A story is one half queue; each epoch of it lands halves,
operations, schedule records and commands. The decision and the plain-Python model must both tell
it as the rules do.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from checker.frames import Parameters
from tests.comparison import Checker
from tests.comparison_rows import (
    rows_of_decision,
    rows_of_model,
    state_of_checker,
    state_of_model,
)
from tests.model import Model
from txlake.protocol import UNDELIVERABLE_TOPIC

Row = dict[str, Any]
T_MS = 1_000_000_000
PARAMETERS = dataclasses.asdict(Parameters())


def _epoch(at: int, half_end: int, **rows: list[Row]) -> Row:
    """Make an epoch to which no time is known."""
    queue = {"queue_id": 0, "half_end": half_end, "known_at": None, "halves_known_at": None}
    nothing: Row = {"halves": [], "operations": [], "schedules": [], "commands": []}
    return {"at": at, "queues": [queue], **nothing, **rows}


def _member(queue_offset: int, seq: int, size: int) -> Row:
    return {
        "queue_id": 0,
        "queue_offset": queue_offset,
        "producer_group": "g",
        "transaction_id": "t",
        "tran_size": size,
        "tran_seq": seq,
        "stored_at": T_MS,
        "real_topic": "orders",
        "real_queue_id": 0,
        "delay_level": None,
        "deliver_at": None,
        "immunity_ms": None,
        "error": None,
    }


def _operation(op_queue_offset: int, decision: str, half_offsets: list[int]) -> Row:
    return {
        "queue_id": 0,
        "op_queue_offset": op_queue_offset,
        "stored_at": T_MS + op_queue_offset,
        "producer_group": "g",
        "decision": decision,
        "half_offsets": half_offsets,
        "transaction_ids": None,
        "cause": "operation",
        "error": None,
    }


def _schedule(stored_at: int, deliver_at: int | None) -> Row:
    return {
        "queue_id": 0,
        "queue_offset": 0,
        "stored_at": stored_at,
        "real_topic": "orders",
        "real_queue_id": 0,
        "delay_level": None,
        "deliver_at": deliver_at,
        "error": None,
    }


def _half(queue_offset: int, **columns: Any) -> Row:
    """Returns a half alone."""
    return {**_member(queue_offset, 0, 1), "tran_size": None, "tran_seq": None, **columns}


def _commands(*commands: tuple[str, str]) -> list[Row]:
    return [
        {"admin_offset": offset, "command": command, "target": target, "error": None}
        for offset, (command, target) in enumerate(commands)
    ]


def _told(by: str, epochs: list[Row], **parameters: Any) -> list[dict[str, list[Any]]]:
    """Return what the decision, or the model, makes of each epoch, with the state after it."""
    checker, model = Checker(), Model()
    in_force = PARAMETERS | parameters
    told = []
    for epoch in epochs:
        if by == "checker":
            rows = rows_of_decision(checker.decide(epoch, in_force))
            told.append(rows | state_of_checker(checker.state, epoch["queues"]))
        else:
            rows = rows_of_model(model.decide(epoch, in_force))
            told.append(rows | state_of_model(model, epoch["queues"]))
    return told


both = pytest.mark.parametrize("by", ["checker", "model"])


@both
@pytest.mark.parametrize("epochs_between", [0, 1, 2])
def test_half_named_twice_by_an_operation_that_waits_for_its_set_is_a_duplicate_end(
    by: str, epochs_between: int
) -> None:
    """A half named twice in one operation: the second is a duplicate_end. However it is cut."""
    first = [_member(0, 0, 3), _member(1, 1, 3)]
    named = [_operation(0, "COMMIT", [0, 1, 1])]
    told = _told(
        by,
        [
            _epoch(T_MS, 2, halves=first, operations=named),
            *[_epoch(T_MS, 2)] * epochs_between,
            _epoch(T_MS, 3, halves=[_member(2, 2, 3)]),
        ],
    )
    assert [row[3] for row in told[-1]["outcomes"]] == ["COMMITTED"] * 3
    assert [row for epoch in told for row in epoch["conflicts"]] == [(0, 0, 1, "duplicate_end")]


@both
def test_half_named_twice_by_an_operation_that_loses_its_set_is_two_conflicts(by: str) -> None:
    """First end wins, the rest are recorded conflicts; each position that names it again too."""
    first = [_member(0, 0, 3), _member(1, 1, 3)]
    told = _told(
        by,
        [
            _epoch(
                T_MS,
                2,
                halves=first,
                operations=[
                    _operation(0, "COMMIT", [0]),
                    _operation(1, "ROLLBACK", [0, 1, 1]),
                ],
            ),
            _epoch(T_MS, 3, halves=[_member(2, 2, 3)]),
        ],
    )
    assert sorted(row for epoch in told for row in epoch["conflicts"]) == [
        (0, 1, 0, "conflicting_end"),
        (0, 1, 1, "conflicting_end"),
    ]


@both
def test_half_named_twice_by_an_operation_that_loses_has_the_losers_reason_twice(by: str) -> None:
    """Of the second naming too it is the loser's reason; `duplicate_end` is for a winner's."""
    operations = [_operation(0, "COMMIT", [0]), _operation(1, "ROLLBACK", [0, 0])]
    (told,) = _told(by, [_epoch(T_MS, 1, halves=[_half(0)], operations=operations)])
    assert [row[3] for row in told["outcomes"]] == ["COMMITTED"]
    assert told["conflicts"] == [(0, 1, 0, "conflicting_end")] * 2


@both
def test_rollback_of_a_complete_set_waits_for_no_half_to_come(by: str) -> None:
    """It applies at once, though a duplicate of the set could still land where a COMMIT waits."""
    members = [_member(0, 0, 2), _member(1, 1, 2)]
    operations = [_operation(0, "COMMIT", [2]), _operation(1, "ROLLBACK", [0])]
    told = _told(
        by,
        [
            _epoch(T_MS, 2, halves=members, operations=operations),
            _epoch(T_MS, 3, halves=[_member(2, 1, 2)]),
        ],
    )
    assert [row[1:6] for row in told[0]["outcomes"]] == [
        (0, 0, "ROLLED_BACK", "operation", 1),
        (1, 0, "ROLLED_BACK", "operation", 1),
    ]
    assert [row[1:6] for row in told[1]["outcomes"]] == [
        (2, 0, "ROLLED_BACK", "duplicate_in_set", None)
    ]
    assert told[1]["conflicts"] == [(0, 0, 2, "conflicting_end")]


@both
def test_last_answer_is_that_of_the_largest_op_offset_when_an_earlier_one_waited(by: str) -> None:
    """UNKNOWN: the last one is kept as the producer's last answer."""
    told = _told(
        by,
        [
            _epoch(
                T_MS,
                1,
                halves=[_member(0, 0, 2)],
                operations=[_operation(0, "UNKNOWN", [1]), _operation(1, "UNKNOWN", [0])],
            ),
            _epoch(T_MS, 2, halves=[_member(1, 1, 2)]),
        ],
    )
    answers = [[row[-1] for row in epoch["units"]] for epoch in told]
    assert answers == [[T_MS + 1], [T_MS + 1]]


@both
@pytest.mark.parametrize(
    ("stored_at", "deliver_at", "expected"),
    [
        (T_MS - 5, None, T_MS - 5),
        (T_MS + 5, None, T_MS),
        (T_MS - 5, T_MS - 9, T_MS - 5),
        (T_MS - 5, T_MS, T_MS - 5),
        (T_MS + 5, T_MS - 9, T_MS),
        (T_MS - 5, T_MS + 1, T_MS + 1),
    ],
)
def test_schedule_record_due_at_once_waits_for_its_storing_and_for_t_whichever_is_less(
    by: str, stored_at: int, deliver_at: int | None, expected: int
) -> None:
    """DELIVER_AT not after T counts as no delay; without a delay a record is due at once."""
    (told,) = _told(by, [_epoch(T_MS, 0, schedules=[_schedule(stored_at, deliver_at)])])
    assert [row[3] for row in told["delayed"]] == [expected]
    assert len(told["placements"]) == (expected <= T_MS)


@both
def test_schedule_record_whose_latest_time_has_passed_is_due_at_once(by: str) -> None:
    """DELIVER_AT beyond the configured maximum is the maximum; not after T counts as no delay."""
    stored_at = T_MS - PARAMETERS["deliver_at_max_ms"] - 1
    (told,) = _told(by, [_epoch(T_MS, 0, schedules=[_schedule(stored_at, T_MS + 1)])])
    assert [row[3] for row in told["delayed"]] == [stored_at]
    assert len(told["placements"]) == 1


@both
@pytest.mark.parametrize(
    ("auto_create_topics", "reason"),
    [(False, "topic_not_allowed"), (True, "queue_out_of_range")],
)
def test_queue_of_a_topic_that_may_not_be_made_is_not_looked_at(
    by: str, auto_create_topics: bool, reason: str
) -> None:
    """There is no queue count to compare it with: the topic's reason comes first."""
    epoch = _epoch(T_MS, 0, schedules=[{**_schedule(T_MS, None), "real_queue_id": 4}])
    parameters = PARAMETERS | {"auto_create_topics": auto_create_topics}
    if by == "checker":
        placements = Checker().decide(epoch, parameters).placements.to_pylist()
    else:
        placements = Model().decide(epoch, parameters)["placements"]
    assert [(row["topic"], row["reason"]) for row in placements] == [(UNDELIVERABLE_TOPIC, reason)]


@both
def test_second_command_about_one_thing_in_an_epoch_finds_what_the_first_one_left(by: str) -> None:
    """Commands take effect in offset order, each on what those before it left."""
    epochs = [
        _epoch(T_MS, 1, halves=[_half(0)], schedules=[_schedule(T_MS, T_MS + 9_000)]),
        _epoch(T_MS, 1, commands=_commands(("CREATE_TOPIC", "topic:old:2"))),
    ]
    epochs[0]["queues"][0]["known_at"] = T_MS + 1
    pairs = [
        ("RESUME", "half:0-0"), ("RESUME", "half:0-0"),
        ("CANCEL", "schedule:0-0"), ("CANCEL", "schedule:0-0"),
        ("CREATE_TOPIC", "topic:new:3"), ("CREATE_TOPIC", "topic:new:2"),
        ("CREATE_TOPIC", "topic:old:5"), ("CREATE_TOPIC", "topic:old:4"),
    ]  # fmt: skip
    *_, told = _told(
        by,
        [*epochs, _epoch(T_MS, 1, commands=_commands(*pairs))],
        check_max=0,
        transaction_timeout_ms=0,
    )
    assert [result for _, result in told["command_results"]] == [
        "rearmed", "not_discarded", "cancelled", "not_delayed", "created", "created", "grown",
        "unchanged",
    ]  # fmt: skip
    assert told["topics"] == [("TRANS_CHECK_MAX_TIME_TOPIC", 1), ("new", 3), ("old", 5)]
    assert [row[3] for row in told["deliveries"]] == ["CANCELLED"]


@both
@pytest.mark.parametrize("may_be_made", [True, False])
def test_message_resumed_twice_in_an_epoch_is_delivered_once_and_both_say_the_same(
    by: str, may_be_made: bool
) -> None:
    """Both are `resumed`, or both `still_undeliverable`."""
    made = [("CREATE_TOPIC", "topic:orders:1")] if may_be_made else []
    resumes = [("RESUME", "undeliverable:0"), ("RESUME", "undeliverable:0")]
    *_, told = _told(
        by,
        [
            _epoch(T_MS, 0, schedules=[_schedule(T_MS, None)]),
            _epoch(T_MS, 0, commands=_commands(*made, *resumes)),
        ],
        auto_create_topics=False,
    )
    result = "resumed" if may_be_made else "still_undeliverable"
    assert [said for _, said in told["command_results"]][-2:] == [result] * 2
    assert [row[0] for row in told["placements"]] == ["orders"] * may_be_made
    assert [row[3] for row in told["deliveries"]] == ["DELIVERED"] * may_be_made
