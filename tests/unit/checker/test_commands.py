"""What an operator's commands do, every result by its name.

Source: docs/protocol/rules.md "Operator commands".
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.cases import Result, case, table
from tests.support.steps import (
    T_MS,
    Step,
    alter_topic,
    cancel,
    command,
    commit,
    create_topic,
    half,
    later,
    parameters,
    resume,
    schedule,
)

GIVEN_UP = [parameters(check_max=0), half(age_ms=6_001), later()]
MADE = [create_topic("orders:1"), later()]
UNDELIVERABLE = [half(real_queue_id=9), commit(0), later()]
DELAYED = [half(delay_level=1), commit(0), later(500)]

ALTERS = [
    case(
        given=[
            *MADE,
            alter_topic("orders:retention.ms=1"),
            alter_topic("orders:retention.ms=-1"),
            alter_topic("orders:retention.bytes=1"),
        ],
        expected=["created", "altered", "altered", "altered"],
        why="both of Kafka's configs, and without a limit",
    ),
    case(
        given=[create_topic("orders:1"), alter_topic("orders:retention.ms=1")],
        expected=["created", "altered"],
        why="a topic that a command before it makes",
    ),
    case(
        given=[alter_topic("orders:retention.ms=1"), create_topic("orders:1")],
        expected=["no_such_topic", "created"],
        why="there is no such topic yet",
    ),
    case(
        given=[
            *MADE,
            alter_topic("orders:retention.ms=0"),
            alter_topic("orders:retention.ms=-2"),
            alter_topic("orders:retention.s=1"),
            command("ALTER_TOPIC", "topic:orders:1"),
        ],
        expected=["created", "bad_target", "bad_target", "bad_target", "bad_target"],
        why="at least 1, or -1; and nothing else can be set",
    ),
    case(
        given=[*UNDELIVERABLE, alter_topic("TRANS_UNDELIVERABLE_TOPIC:retention.ms=1")],
        expected=["bad_target"],
        why="undeliverable messages stay: each can be resumed",
    ),
    case(
        given=[*GIVEN_UP, later(), alter_topic("TRANS_CHECK_MAX_TIME_TOPIC:retention.ms=1")],
        expected=["altered"],
        why="copies of what was given up are messages like others",
    ),
]

RESUME_MESSAGE = [
    case(
        given=[*UNDELIVERABLE, create_topic("orders:10"), resume("undeliverable:0")],
        expected=["created", "resumed"],
        why="its topic takes it from this epoch on",
    ),
    case(
        given=[*UNDELIVERABLE, resume("undeliverable:0")],
        expected=["still_undeliverable"],
        why="its topic still cannot take it",
    ),
    case(
        given=[*UNDELIVERABLE, resume("undeliverable:0"), later(), create_topic("orders:10"),
               resume("undeliverable:0")],
        expected=["still_undeliverable", "created", "resumed"],
        why="it may be resumed again",
    ),
    case(
        given=[*UNDELIVERABLE, resume("undeliverable:1")],
        expected=["not_undeliverable"],
        why="no message waits there",
    ),
    case(
        given=[*UNDELIVERABLE, create_topic("orders:10"), resume("undeliverable:0"), later(),
               resume("undeliverable:0")],
        expected=["created", "resumed", "not_undeliverable"],
        why="it was delivered already",
    ),
]  # fmt: skip

CANCELS = [
    case(
        given=[*DELAYED, cancel("half:0-0")],
        expected=["cancelled"],
        why="a half that waits for its time",
    ),
    case(
        given=[schedule(deliver_at=T_MS + 9_000), later(), cancel("schedule:0-0")],
        expected=["cancelled"],
        why="a schedule record that waits for its time",
    ),
    case(
        given=[*DELAYED, cancel("schedule:0-0")],
        expected=["not_delayed"],
        why="nothing waits under this name: the other source",
    ),
    case(
        given=[*DELAYED, later(500), later(), cancel("half:0-0")],
        expected=["not_delayed"],
        why="it was delivered in an earlier epoch",
    ),
    case(
        given=[half(delay_level=1), commit(0), cancel("half:0-0")],
        expected=["not_delayed"],
        why="before this epoch: what begins to wait in it cannot be cancelled in it",
    ),
]

CREATES = [
    case(given=[create_topic("new:3")], expected=["created"], why="the topic is made"),
    case(
        given=[create_topic("old:3"), later(), create_topic("old:4")],
        expected=["created", "grown"],
        why="the topic has more queues",
    ),
    case(
        given=[create_topic("old:3"), later(), create_topic("old:3"), create_topic("old:2")],
        expected=["created", "unchanged", "unchanged"],
        why="it has as many, or more: never fewer",
    ),
    case(
        given=[create_topic("a:0"), create_topic("a:1"), create_topic("b:10000"),
               create_topic("c:10001")],
        expected=["bad_target", "created", "created", "bad_target"],
        why="1 to 10000 queues",
    ),
    case(
        given=[parameters(auto_create_topics=False, topics_max=0), create_topic("a:1")],
        expected=["created"],
        why="an operator's topic needs no permission",
    ),
    case(
        given=[create_topic("TRANS_CHECK_MAX_TIME_TOPIC:2"),
               create_topic("TRANS_UNDELIVERABLE_TOPIC:2"), create_topic("TRANS_CHECK_g:2"),
               create_topic(".:1"), create_topic("..:1"), create_topic("a/b:1")],
        expected=["bad_target"] * 6,
        why="such a topic may not be made: our own, a check topic, no name of a topic",
    ),
]  # fmt: skip

OTHERS = [
    case(
        given=[command("MAINTAIN"), command("PING"), command("PING", "whatever")],
        expected=["accepted"] * 3,
        why="MAINTAIN and PING are noted, whatever their target",
    ),
    case(
        given=[command(name, target)
               for name in ("RESUME", "RESEND", "CANCEL", "CREATE_TOPIC")
               for target in (None, "", "half", "half:0", "half:0-x", "half:0-0-0", "topic:a")],
        expected=["bad_target"] * 28,
        why="a target that cannot be read",
    ),
    case(
        given=[cancel("undeliverable:0"), resume("schedule:0-0"), resume("topic:a:1")],
        expected=["bad_target"] * 3,
        why="a target of another command",
    ),
    case(
        given=[command("NOTHING", "half:0-0", error="unknown_command"),
               command("PING", None, error="newer_version")],
        expected=["unknown_command", "newer_version"],
        why="a record that cannot be read has its error as its result",
    ),
]  # fmt: skip


@table([*RESUME_MESSAGE, *CANCELS, *CREATES, *ALTERS, *OTHERS])
def test_a_command_and_its_result(given: Sequence[Step], expected: list[str]) -> None:
    assert Result(given).results() == expected


def test_a_command_that_fits_nothing_changes_nothing() -> None:
    told = Result(
        [
            half(),
            half(),
            commit(1),
            later(0),
            resume("half:0-0"),
            cancel("half:0-1"),
            resume("undeliverable:3"),
            create_topic("orders:2"),
        ]
    )
    assert told.results() == ["not_discarded", "not_delayed", "not_undeliverable", "unchanged"]
    assert told.ends() == {0: "WAITS", 1: "COMMITTED"}
    assert told.topics() == {"orders": 4}
    assert told.rows("deliveries") == []


def test_a_cancelled_halfs_outcome_stays_committed() -> None:
    told = Result([*DELAYED, cancel("half:0-0"), later()])
    assert told.ends() == {0: "COMMITTED"}
    assert [row["action"] for row in told.rows("deliveries")] == ["CANCELLED"]


def test_second_command_about_one_thing_in_an_epoch_finds_what_the_first_one_left() -> None:
    told = Result(
        [
            parameters(check_max=0),
            half(age_ms=6_001),
            schedule(deliver_at=T_MS + 9_000),
            later(),
            create_topic("old:2"),
            later(),
            resume("half:0-0"),
            resume("half:0-0"),
            cancel("schedule:0-0"),
            cancel("schedule:0-0"),
            create_topic("new:3"),
            create_topic("new:2"),
            create_topic("old:5"),
            create_topic("old:4"),
        ]
    )
    assert told.results()[1:] == [
        "rearmed",
        "not_discarded",
        "cancelled",
        "not_delayed",
        "created",
        "created",
        "grown",
        "unchanged",
    ]
    assert told.topics() == {"TRANS_CHECK_MAX_TIME_TOPIC": 1, "new": 3, "old": 5}
    assert [row["action"] for row in told.rows("deliveries")] == ["CANCELLED"]


@pytest.mark.parametrize("may_be_made", [True, False])
def test_message_resumed_twice_in_an_epoch_is_delivered_once_and_both_say_the_same(
    may_be_made: bool,
) -> None:
    told = Result(
        [
            parameters(auto_create_topics=False),
            schedule(),
            later(),
            *([create_topic("orders:1")] if may_be_made else []),
            resume("undeliverable:0"),
            resume("undeliverable:0"),
        ]
    )
    result = "resumed" if may_be_made else "still_undeliverable"
    assert told.results()[-2:] == [result] * 2
    delivered = {"orders 0": ["schedule 0-0"]} if may_be_made else {}
    assert told.queues() == {
        "TRANS_UNDELIVERABLE_TOPIC 0": ["schedule 0-0: topic_not_allowed"],
        **delivered,
    }
