"""Members of a group keep their queues and positions though somebody deletes `consumer_offsets`."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from tests.support.lake_factory import LakeFactory, poll_all
from tests.support.session_clock import SessionClock
from txlake import Consumer

QUEUES = 4


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", QUEUES)
    return lake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SessionClock:
    return SessionClock(monkeypatch)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ids(consumer: Consumer) -> list[int]:
    return [queue_id for _, queue_id in consumer.assignment()]


def look(consumer: Consumer) -> list[tuple[int, int]]:
    """Poll, and look at the other members. Output: queues and offsets of the messages."""
    consumer._queues._look_at = 0.0
    return [(message.queue_id, message.queue_offset) for message in consumer.poll(0.0)]


def delete_offsets(orders: LakeFactory) -> None:
    shutil.rmtree(orders.path / "consumer_offsets")


def share(
    orders: LakeFactory,
    opened: ExitStack,
    count: int,
    reset: Literal["earliest", "latest"] = "earliest",
    session_timeout_ms: int = 60_000,
) -> list[Consumer]:
    """Open members that share all queues, each queue with 7 messages that are committed."""
    members = []
    for _ in range(count):
        members.append(
            opened.enter_context(
                Consumer(
                    orders.path,
                    "points",
                    ["orders"],
                    auto_offset_reset=reset,
                    session_timeout_ms=session_timeout_ms,
                )
            )
        )
        for _round in range(3):  # what is to go goes, then it is taken
            for member in members:
                assert look(member) == []

    orders.deliver("orders", dict.fromkeys(range(QUEUES), 7))
    for member in members:
        if member.assignment():
            poll_all(member, 7 * len(member.assignment()))
        member.commit()
    return members


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("first", ["poll", "commit"])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_members_keep_their_queues_and_positions_where_the_table_was_deleted(
    orders: LakeFactory, opened: ExitStack, reset: Literal["earliest", "latest"], first: str
) -> None:
    one, two = share(orders, opened, 2, reset)
    before = [ids(one), ids(two)]
    assert sorted(before) == [[0, 1], [2, 3]]
    orders.deliver("orders", dict.fromkeys(range(QUEUES), 1))  # with latest a loss

    delete_offsets(orders)
    seen = Counter(look(one) if first == "poll" else [])
    if first == "commit":
        one.commit()  # it has its own rows back before it looks at the others
    for _round in range(3):
        for member in (one, two):
            seen.update(look(member))

    assert [ids(one), ids(two)] == before
    assert seen == Counter((queue_id, 7) for queue_id in range(QUEUES))
    assert {**one.committed(), **two.committed()} == {("orders", q): 7 for q in range(QUEUES)}


@pytest.mark.usefixtures("clock")
def test_a_member_without_queues_takes_none_of_those_whose_rows_are_lost(
    orders: LakeFactory, opened: ExitStack
) -> None:
    *owners, idle = share(orders, opened, QUEUES + 1)
    before = [ids(member) for member in owners]
    assert look(idle) == [] and ids(idle) == []

    delete_offsets(orders)
    for member in (idle, idle, *owners, idle):
        assert look(member) == []

    assert ids(idle) == []
    assert [ids(member) for member in owners] == before
    assert {offset for member in owners for offset in member.committed().values()} == {7}


def test_the_queues_of_a_member_that_died_with_the_table_go_to_the_others_after_its_session(
    orders: LakeFactory, opened: ExitStack, clock: SessionClock
) -> None:
    dead, one = share(orders, opened, 2, session_timeout_ms=60_000)
    one._queues.ownership._session_timeout_ms = 3_000  # the longest of the others counts
    lost = ids(dead)

    delete_offsets(orders)
    for _ in range(19):
        assert look(one) == []
        assert len(ids(one)) == 2
        clock.pass_s(3.0)

    clock.pass_s(6.0)
    seen = Counter(look(one))
    for _round in range(3):
        seen.update(look(one))
    assert ids(one) == [0, 1, 2, 3]
    assert seen == Counter((queue_id, offset) for queue_id in lost for offset in range(7))
