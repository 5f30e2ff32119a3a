"""What the target of an operator's command is: written and read in one place."""

from __future__ import annotations

import pytest

from txlake.protocol import (
    ACCEPT_LOSS,
    ALTER_TOPIC,
    CANCEL,
    COMMANDS,
    CREATE_TOPIC,
    MAINTAIN,
    RESEND,
    RESUME,
    ConfigTarget,
    LostTarget,
    RecordTarget,
    Target,
    TopicTarget,
    UndeliverableTarget,
    command_target,
    read_target,
)

HALF, SCHEDULE = RecordTarget("half", 3, 17), RecordTarget("schedule", 3, 17)
CONFIG = ConfigTarget("shop.orders-1", "retention.ms", -1)
UNDELIVERABLE, TOPIC = UndeliverableTarget(17), TopicTarget("shop.orders-1", 4)
LOST = LostTarget("op", 3, 17, 42)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (HALF, "half:3-17"),
        (SCHEDULE, "schedule:3-17"),
        (UNDELIVERABLE, "undeliverable:17"),
        (TOPIC, "topic:shop.orders-1:4"),
        (CONFIG, "config:shop.orders-1:retention.ms=-1"),
        (LOST, "lost:op:3:17-42"),
    ],
)
def test_a_target_is_read_as_it_is_written(target: Target, text: str) -> None:
    assert str(target) == text
    assert read_target(text) == target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("half:003-0017", HALF, id="leading zeros"),
        pytest.param("half:999999999-" + "9" * 18, RecordTarget("half", 999_999_999, 10**18 - 1),
                     id="the largest numbers"),
        pytest.param("half:1234567890-1", None, id="a queue of ten digits"),
        pytest.param("half:1-" + "9" * 19, None, id="an offset of 19 digits"),
        pytest.param("undeliverable:" + "9" * 19, None, id="an undeliverable offset of 19 digits"),
        pytest.param("topic:a:123456", None, id="a queue count of six digits"),
        pytest.param("config:a:retention.bytes=1", ConfigTarget("a", "retention.bytes", 1),
                     id="the other config"),
        pytest.param("config:a:retentionXms=1", None, id="no such config"),
        pytest.param("config:a:retention.ms=-2", None, id="below -1"),
        pytest.param("topic:a b:1", None, id="no topic's name"),
        pytest.param("topic:" + "a" * 128 + ":1", None, id="a topic's name of 128 characters"),
        pytest.param("lost:admin:0:7-7", LostTarget("admin", 0, 7, 7), id="one lost offset"),
        pytest.param("lost:half:0:8-7", None, id="ends before it begins"),
        pytest.param("lost:epochs:0:7-7", None, id="no kind of record"),
        pytest.param("3-17", None, id="no kind"),
        pytest.param("op:3-17", None, id="no such kind"),
        pytest.param("half:3", None, id="no offset"),
        pytest.param("half:-3-17", None, id="a sign"),
        pytest.param("half:٣-17", None, id="other digits"),
        pytest.param(" half:3-17", None, id="a blank before it"),
        pytest.param("half:3-17\n", None, id="a line end after it"),
        pytest.param("", None, id="empty"),
        pytest.param(None, None, id="no TARGET at all"),
    ],
)  # fmt: skip
def test_what_is_no_target_is_not_read(text: str | None, expected: Target | None) -> None:
    assert read_target(text) == expected


def test_each_command_is_about_its_own_kinds() -> None:
    targets = (HALF, SCHEDULE, UNDELIVERABLE, TOPIC, CONFIG, LOST)
    allowed = {
        command: [target for target in targets if command_target(command, str(target))]
        for command in COMMANDS
    }
    assert allowed == {
        RESUME: [HALF, UNDELIVERABLE],
        RESEND: [HALF],
        CANCEL: [HALF, SCHEDULE],
        CREATE_TOPIC: [TOPIC],
        ALTER_TOPIC: [CONFIG],
        ACCEPT_LOSS: [LOST],
        MAINTAIN: [],
        "PING": [],
    }
