"""What random histories found, each as the smallest history, with the rule's sentence.

A story is one half queue; each epoch of it lands halves, operations and schedule records. The
decision and the plain-Python model must both tell it as the rules do.
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


def _told(by: str, epochs: list[Row]) -> list[dict[str, list[Any]]]:
    """Give what the decision, or the model, makes of each epoch, with the state after it."""
    checker, model = Checker(), Model()
    told = []
    for epoch in epochs:
        if by == "checker":
            rows = rows_of_decision(checker.decide(epoch, PARAMETERS))
            told.append(rows | state_of_checker(checker.state, epoch["queues"]))
        else:
            rows = rows_of_model(model.decide(epoch, PARAMETERS))
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
