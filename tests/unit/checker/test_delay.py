"""When a delayed message may be delivered: docs/protocol/rules.md "Delay".

Expected is the due time in ms after the first epoch's epoch_at; None: the message has no delay.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.cases import Result, case, table
from tests.support.steps import (
    T_MS,
    Step,
    cancel,
    commit,
    half,
    later,
    parameters,
    schedule,
)

LEVELS = parameters(
    delay_levels_ms=(1_000, 5_000, 10_000),
    deliver_at_max_ms=60_000,
    deliver_at_goes_first=True,
    due_at_max=T_MS + 1_000_000,
)
BEFORE = parameters(deliver_at_goes_first=False)  # as up to rule version 4
FAR_MS = T_MS + 99_000_000

OF_HALVES = [
    case(
        given=[LEVELS, half(delay_level=1), commit(0)],
        expected=1_000,
        why="a level counts from epoch_at of the epoch that committed the half, not from stored_at",
    ),
    case(
        given=[LEVELS, half(delay_level=3), commit(0)],
        expected=10_000,
        why="the last level",
    ),
    case(
        given=[LEVELS, half(delay_level=4), commit(0)],
        expected=10_000,
        why="a level above the last is the last",
    ),
    case(
        given=[LEVELS, half(delay_level=0), commit(0)],
        expected=None,
        why="level 0 is no delay",
    ),
    case(
        given=[LEVELS, half(), commit(0)],
        expected=None,
        why="without a level or a time there is no delay",
    ),
    case(
        given=[LEVELS, half(delay_level=2), later(7_000), commit(0)],
        expected=12_000,
        why="a half committed in a later epoch counts from that epoch",
    ),
    case(
        given=[LEVELS, half(deliver_at=T_MS + 1), commit(0)],
        expected=1,
        why="DELIVER_AT is the due time when it is after epoch_at",
    ),
    case(
        given=[LEVELS, half(deliver_at=T_MS), commit(0)],
        expected=None,
        why="DELIVER_AT not after epoch_at is no delay",
    ),
    case(
        given=[LEVELS, half(deliver_at=T_MS + 60_000), commit(0)],
        expected=60_000,
        why="DELIVER_AT at the configured maximum",
    ),
    case(
        given=[LEVELS, half(deliver_at=T_MS + 60_001), commit(0)],
        expected=60_000,
        why="DELIVER_AT beyond the maximum is the maximum, counted from epoch_at",
    ),
    case(
        given=[LEVELS, half(delay_level=2, deliver_at=T_MS + 30_000), commit(0)],
        expected=30_000,
        why="DELIVER_AT goes before a level",
    ),
    case(
        given=[LEVELS, BEFORE, half(delay_level=2, deliver_at=T_MS + 30_000), commit(0)],
        expected=5_000,
        why="up to rule version 4 a level above 0 went before DELIVER_AT",
    ),
    case(
        given=[LEVELS, half(delay_level=2, deliver_at=T_MS), commit(0)],
        expected=None,
        why="a DELIVER_AT that has passed goes before a level, too: no delay",
    ),
    case(
        given=[LEVELS, half(delay_ms=15_000), later(7_000), commit(0)],
        expected=22_000,
        why="a span counts from epoch_at of the epoch that committed the half",
    ),
    case(
        given=[LEVELS, half(delay_ms=60_000), commit(0)],
        expected=60_000,
        why="a span of the configured maximum",
    ),
    case(
        given=[LEVELS, half(delay_ms=60_001), commit(0)],
        expected=60_000,
        why="a span beyond the maximum is the maximum",
    ),
    case(
        given=[LEVELS, half(delay_ms=0), commit(0)],
        expected=None,
        why="a span of 0 is no delay",
    ),
    case(
        given=[LEVELS, half(delay_ms=2_000, delay_level=3), commit(0)],
        expected=2_000,
        why="a span goes before a level",
    ),
    case(
        given=[LEVELS, half(delay_ms=0, delay_level=3), commit(0)],
        expected=None,
        why="a span of 0, too",
    ),
    case(
        given=[LEVELS, half(delay_ms=2_000, deliver_at=T_MS + 30_000), commit(0)],
        expected=30_000,
        why="DELIVER_AT goes before a span",
    ),
    case(
        given=[LEVELS, parameters(due_at_max=T_MS + 4_999), half(delay_level=2), commit(0)],
        expected=4_999,
        why="a level that leads beyond the last instant ends there",
    ),
    case(
        given=[LEVELS, parameters(due_at_max=T_MS + 4_999), half(delay_ms=5_000), commit(0)],
        expected=4_999,
        why="a span that leads beyond the last instant ends there",
    ),
    case(
        given=[
            LEVELS,
            parameters(due_at_max=T_MS + 4_999),
            half(deliver_at=T_MS + 5_000),
            commit(0),
        ],
        expected=4_999,
        why="a DELIVER_AT beyond the last instant ends there",
    ),
    case(
        given=[LEVELS, half(delay_level=0, deliver_at=T_MS + 30_000), commit(0)],
        expected=30_000,
        why="level 0 does not beat DELIVER_AT",
    ),
]

OF_SCHEDULE_RECORDS = [
    case(
        given=[LEVELS, schedule(delay_level=2, age_ms=300)],
        expected=4_700,
        why="a level counts from when the broker stored the schedule record",
    ),
    case(
        given=[LEVELS, schedule(delay_ms=15_000, age_ms=300)],
        expected=14_700,
        why="a span counts from when the broker stored the schedule record",
    ),
    case(
        given=[LEVELS, schedule(deliver_at=FAR_MS, age_ms=300)],
        expected=59_700,
        why="a schedule record's maximum counts from its storing",
    ),
]


@table([*OF_HALVES, *OF_SCHEDULE_RECORDS])
def test_due_time(given: Sequence[Step], expected: int | None) -> None:
    told = Result(given)
    due_at = [row["deliver_at"] - T_MS for row in told.rows("delayed")]
    assert due_at == ([] if expected is None else [expected])
    assert len(told.rows("placements")) == (expected is None)


@table(
    [
        case(
            given=[LEVELS, half(delay_level=1), commit(0), later(999)],
            expected={},
            why="1 ms before its due time: not yet",
        ),
        case(
            given=[LEVELS, half(delay_level=1), commit(0), later(1_000)],
            expected={"orders 0": ["half 0-0"]},
            why="in the first epoch whose epoch_at has reached its due time",
        ),
        case(
            given=[LEVELS, half(delay_level=1), commit(0), later(1_000), later(), later()],
            expected={"orders 0": ["half 0-0"]},
            why="once",
        ),
        case(
            given=[LEVELS, schedule(delay_level=1, age_ms=1_000)],
            expected={"orders 0": ["schedule 0-0"]},
            why="a schedule record whose time has come is delivered in the epoch that lands it",
        ),
        case(
            given=[LEVELS, schedule(error="bad_real_topic")],
            expected={},
            why="a schedule record that cannot be read is not delivered",
        ),
        case(
            given=[LEVELS, half(delay_level=1), commit(0), later(), cancel("half:0-0")],
            expected={},
            why="cancelled in the epoch in which it is due: not delivered",
        ),
    ]
)
def test_delivered_once_and_never_early(
    given: Sequence[Step], expected: dict[str, list[str]]
) -> None:
    assert Result(given).queues() == expected


@table(
    [
        case(
            given=[schedule(age_ms=5)],
            expected=-5,
            why="without a delay it is due since it was stored",
        ),
        case(
            given=[schedule(age_ms=-5)],
            expected=0,
            why="stored after epoch_at, the broker's clock ahead: due since epoch_at",
        ),
        case(
            given=[schedule(age_ms=5, deliver_at=T_MS - 9)],
            expected=-5,
            why="DELIVER_AT before its storing is no delay",
        ),
        case(
            given=[schedule(age_ms=5, deliver_at=T_MS)],
            expected=-5,
            why="DELIVER_AT at epoch_at is no delay",
        ),
        case(
            given=[schedule(age_ms=-5, deliver_at=T_MS - 9)],
            expected=0,
            why="no delay, and stored after epoch_at",
        ),
        case(
            given=[schedule(age_ms=5, deliver_at=T_MS + 1)],
            expected=1,
            why="DELIVER_AT after epoch_at is a delay",
        ),
        case(
            given=[LEVELS, schedule(age_ms=60_001, deliver_at=T_MS + 1)],
            expected=-60_001,
            why="its latest time has passed: due at once",
        ),
    ]
)
def test_schedule_record_due_at_once_waits_for_its_storing_and_for_t_whichever_is_less(
    given: Sequence[Step], expected: int
) -> None:
    told = Result(given)
    (row,) = told.rows("delayed")
    assert row["deliver_at"] - T_MS == expected
    assert len(told.rows("placements")) == (expected <= 0)
