"""What is delivered where: docs/protocol/rules.md "Delivery".

Expected are the messages of each real queue, in order of their queue offsets. A real topic has 4
queues where a case does not say otherwise; `asked` is a half's REAL_QID.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.cases import Result, case, table
from tests.support.steps import (
    T_MS,
    Step,
    cancel,
    commit,
    create_topic,
    half,
    later,
    parameters,
    resume,
    schedule,
    unknown,
)

UNDELIVERABLE = "TRANS_UNDELIVERABLE_TOPIC 0"
DISCARDS = "TRANS_CHECK_MAX_TIME_TOPIC 0"
NONE_MADE = parameters(auto_create_topics=False)


def asked(real_queue_id: int, topic: str = "orders", **columns: Any) -> Step:
    """Land a half that asks for a queue."""
    return half(real_queue_id=real_queue_id, real_topic=topic, **columns)


WHICH_QUEUE = [
    case(
        given=[asked(3), commit(0)],
        expected={"orders 3": ["half 0-0"]},
        why="the half's REAL_QID",
    ),
    case(
        given=[*[half()] * 6, commit(*range(6))],
        expected={"orders 0": ["half 0-0", "half 0-4"], "orders 1": ["half 0-1", "half 0-5"],
                  "orders 2": ["half 0-2"], "orders 3": ["half 0-3"]},
        why="without it the half's offset modulo the queue count",
    ),
    case(
        given=[schedule(), schedule(), schedule(queue=5)],
        expected={"orders 0": ["schedule 0-0", "schedule 5-0"], "orders 1": ["schedule 0-1"]},
        why="a schedule record's own offset modulo the queue count",
    ),
    case(
        given=[half(), commit(0), later(), create_topic("orders:6"), *[half()] * 5, commit(5)],
        expected={"orders 0": ["half 0-0"], "orders 5": ["half 0-5"]},
        why="the queue count is the one of this epoch: a topic that grows takes part at once",
    ),
    case(
        given=[asked(0), commit(0), later(), asked(0), commit(1), later(), asked(0), commit(2)],
        expected={"orders 0": ["half 0-0", "half 0-1", "half 0-2"]},
        why="queue offsets go on where the last epoch ended",
    ),
]  # fmt: skip

ORDER = [
    case(
        given=[NONE_MADE, asked(0), commit(0), asked(0, delay_level=1), commit(1), later(),
               create_topic("orders:1"), resume("undeliverable:0"), asked(0), commit(2)],
        expected={UNDELIVERABLE: ["half 0-0: topic_not_allowed"],
                  "orders 0": ["half 0-1", "half 0-2", "half 0-0"]},
        why="first what was delayed, then what is committed now, then what was resumed",
    ),
    case(
        given=[*[asked(0, deliver_at=T_MS + ms) for ms in (900, 800)], commit(0, 1),
               schedule(real_queue_id=0, deliver_at=T_MS + 800),
               schedule(real_queue_id=0, deliver_at=T_MS + 700),
               asked(0, queue=1, deliver_at=T_MS + 800), commit(0, queue=1), later()],
        expected={"orders 0": ["schedule 0-1", "half 0-1", "half 1-0", "schedule 0-0",
                               "half 0-0"]},
        why="delayed messages by due time, then halves first, then queue and offset",
    ),
    case(
        given=[*[asked(0)] * 4, asked(0, queue=1), commit(0, queue=1), commit(3), commit(2, 0),
               commit(1)],
        expected={"orders 0": ["half 0-3", "half 0-2", "half 0-0", "half 0-1", "half 1-0"]},
        why="committed halves by op queue, op offset and position, whatever their own offsets",
    ),
    case(
        given=[NONE_MADE, *[asked(0)] * 3, commit(2), commit(0), commit(1), later(),
               create_topic("orders:1"), resume("undeliverable:2"), resume("undeliverable:0")],
        expected={UNDELIVERABLE: [f"half 0-{n}: topic_not_allowed" for n in (2, 0, 1)],
                  "orders 0": ["half 0-2", "half 0-1"]},
        why="resumed messages by their offset in TRANS_UNDELIVERABLE_TOPIC, not by their commands",
    ),
    case(
        given=[parameters(check_max=0), half(queue=1, age_ms=9_000), half(age_ms=7_000),
               half(age_ms=8_000)],
        expected={DISCARDS: [f"half {place}: check_max" for place in ("0-0", "0-1", "1-0")]},
        why="discards by half coordinate, whatever their age",
    ),
    case(
        given=[parameters(half_retention_ms=7_000), half(age_ms=7_001)],
        expected={DISCARDS: ["half 0-0: expired"]},
        why="the copy of a discard has the discard's cause",
    ),
]  # fmt: skip

NOT_DELIVERED = [
    case(
        given=[asked(3), asked(4), commit(0, 1)],
        expected={"orders 3": ["half 0-0"], UNDELIVERABLE: ["half 0-1: queue_out_of_range"]},
        why="REAL_QID below the queue count, and not below it",
    ),
    case(
        given=[asked(4), commit(0)],
        expected={UNDELIVERABLE: ["half 0-0: queue_out_of_range"]},
        why="a topic that would be made automatically has the default queue count",
    ),
    case(
        given=[create_topic("orders:5"), asked(4), commit(0)],
        expected={"orders 4": ["half 0-0"]},
        why="an operator's topic has the operator's queue count",
    ),
    case(
        given=[NONE_MADE, half(), commit(0)],
        expected={UNDELIVERABLE: ["half 0-0: topic_not_allowed"]},
        why="there is no such topic and none may be made",
    ),
    case(
        given=[parameters(topics_max=1), half(real_topic="a"), half(real_topic="b"), commit(1, 0)],
        expected={"a 0": ["half 0-0"], UNDELIVERABLE: ["half 0-1: topic_not_allowed"]},
        why="as many topics as topics_max; names take turns in name order, not in the log's",
    ),
    case(
        given=[parameters(topics_max=1), asked(9, "a"), half(real_topic="b"), commit(0, 1)],
        expected={UNDELIVERABLE: ["half 0-0: queue_out_of_range"], "b 1": ["half 0-1"]},
        why="a name of which no message fits the default queue count takes no turn",
    ),
    case(
        given=[parameters(topics_max=1), create_topic("z:1"), half(real_topic="a"), commit(0)],
        expected={UNDELIVERABLE: ["half 0-0: topic_not_allowed"]},
        why="topics asked for by CREATE_TOPIC come first, and count",
    ),
    case(
        given=[parameters(topics_max=2, check_max=0), half(age_ms=6_001), asked(9), commit(1),
               later(), half(real_topic="a"), half(real_topic="b"), commit(2, 3)],
        expected={DISCARDS: ["half 0-0: check_max"],
                  UNDELIVERABLE: ["half 0-1: queue_out_of_range"],
                  "a 2": ["half 0-2"], "b 3": ["half 0-3"]},
        why="our own two topics do not count towards topics_max",
    ),
    case(
        given=[NONE_MADE, parameters(check_max=0), half(age_ms=6_001)],
        expected={DISCARDS: ["half 0-0: check_max"]},
        why="our own two topics are made whenever they are needed",
    ),
    case(
        given=[asked(9, delay_level=1), commit(0), later()],
        expected={UNDELIVERABLE: ["half 0-0: queue_out_of_range"]},
        why="a delayed message is looked at when its time has come",
    ),
    case(
        given=[schedule(real_queue_id=9)],
        expected={UNDELIVERABLE: ["schedule 0-0: queue_out_of_range"]},
        why="a schedule record can be undeliverable, too",
    ),
]  # fmt: skip


@table([*WHICH_QUEUE, *ORDER, *NOT_DELIVERED])
def test_a_message_and_its_place(given: Sequence[Step], expected: dict[str, list[str]]) -> None:
    assert Result(given).queues() == expected


@pytest.mark.parametrize(
    ("auto_create_topics", "reason"),
    [(False, "topic_not_allowed"), (True, "queue_out_of_range")],
)
def test_queue_of_a_topic_that_may_not_be_made_is_not_looked_at(
    auto_create_topics: bool, reason: str
) -> None:
    """There is no queue count to compare it with: the topic's reason comes first."""
    given = [parameters(auto_create_topics=auto_create_topics), schedule(real_queue_id=4)]
    assert Result(given).queues() == {UNDELIVERABLE: [f"schedule 0-0: {reason}"]}


@table(
    [
        case(
            given=[
                half(real_topic="b"),
                half(real_topic="a"),
                commit(0, 1),
                schedule(real_topic="c"),
            ],
            expected={"a": 4, "b": 4, "c": 4},
            why="a topic is made on first use, with the default queue count",
        ),
        case(
            given=[half(), unknown(0), half(delay_level=1), commit(1)],
            expected={},
            why="none is made for a message that is not delivered yet",
        ),
        case(
            given=[
                parameters(default_queue_count=1),
                half(),
                commit(0),
                later(default_queue_count=3),
                half(),
                commit(1),
            ],
            expected={"orders": 1},
            why="a topic keeps its queue count when the default changes",
        ),
        case(
            given=[parameters(check_max=0), half(age_ms=6_001), asked(9), commit(1)],
            expected={"TRANS_CHECK_MAX_TIME_TOPIC": 1, "TRANS_UNDELIVERABLE_TOPIC": 1},
            why="our own two have one queue",
        ),
    ]
)
def test_a_new_topic(given: Sequence[Step], expected: dict[str, int]) -> None:
    assert Result(given).topics() == expected


@table(
    [
        case(
            given=[half(), commit(0)],
            expected=[],
            why="straight from its commit: no row",
        ),
        case(
            given=[half(delay_level=1), commit(0), later()],
            expected=[("half", "DELIVERED")],
            why="its delay is over",
        ),
        case(
            given=[schedule()],
            expected=[("schedule", "DELIVERED")],
            why="a schedule record",
        ),
        case(
            given=[asked(9), commit(0)],
            expected=[("half", "UNDELIVERABLE")],
            why="undeliverable in the epoch of its commit",
        ),
        case(
            given=[
                asked(9),
                commit(0),
                later(),
                create_topic("orders:10"),
                later(),
                resume("undeliverable:0"),
            ],
            expected=[("half", "UNDELIVERABLE"), ("half", "DELIVERED")],
            why="resumed",
        ),
        case(
            given=[asked(9), commit(0), later(), resume("undeliverable:0")],
            expected=[("half", "UNDELIVERABLE")],
            why="resumed in vain: no second row",
        ),
        case(
            given=[half(delay_level=1), commit(0), later(0), cancel("half:0-0"), later()],
            expected=[("half", "CANCELLED")],
            why="cancelled",
        ),
        case(
            given=[parameters(check_max=0), half(age_ms=6_001)],
            expected=[],
            why="a discard's copy: no row",
        ),
    ]
)
def test_what_became_of_a_message(given: Sequence[Step], expected: list[tuple[str, str]]) -> None:
    rows = Result(given).rows("deliveries")
    assert [(row["source"], row["action"]) for row in rows] == expected


@table(
    [
        case(
            given=[asked(2), commit(0)],
            expected=(2, 0),
            why="delivered in the outcome's own epoch",
        ),
        case(
            given=[half(delay_level=1), commit(0), later()],
            expected=(None, None),
            why="delivered later",
        ),
        case(
            given=[asked(9), commit(0)],
            expected=(None, None),
            why="undeliverable",
        ),
    ]
)
def test_an_outcome_says_where_its_message_went(
    given: Sequence[Step], expected: tuple[int | None, int | None]
) -> None:
    (row,) = Result(given).rows("outcomes")
    assert (row["real_queue_id"], row["real_queue_offset"]) == expected
