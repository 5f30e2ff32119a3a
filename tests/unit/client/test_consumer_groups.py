"""Queues have one owner in a consumer group, and owners are replaced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.lake_factory import LakeFactory, places, poll_all
from txlake import Consumer, GroupBusyError, StaleGenerationError, UnknownTopicError


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", 2)
    return lake


def test_a_second_consumer_of_a_group_is_told_who_has_the_queues(orders: LakeFactory) -> None:
    with Consumer(orders.path, "points", ["orders"]):
        with pytest.raises(GroupBusyError, match=r"topic orders queue 0: \S+:\d+:\w+ owns it"):
            Consumer(orders.path, "points", ["orders"])
        Consumer(orders.path, "other", ["orders"]).close()
    Consumer(orders.path, "points", ["orders"]).close()  # given back: free at once


def test_consumers_share_a_group_by_queues(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 2, 1: 3})
    with (
        Consumer(orders.path, "points", ["orders"], queues={"orders": [0]}) as one,
        Consumer(orders.path, "points", ["orders"], queues={"orders": [1]}) as two,
    ):
        assert {message.queue_id for message in poll_all(one, 2)} == {0}
        assert {message.queue_id for message in poll_all(two, 3)} == {1}
        one.commit()
        two.commit()
        assert (one.committed(), two.committed()) == ({("orders", 0): 2}, {("orders", 1): 3})


def test_a_queue_that_the_topic_does_not_have_is_refused(orders: LakeFactory) -> None:
    with pytest.raises(UnknownTopicError, match="topic orders has 2 queues, no 2"):
        Consumer(orders.path, "points", ["orders"], queues={"orders": [2]})


def test_a_consumer_that_died_is_replaced_and_can_no_longer_commit(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 4})
    dead = Consumer(orders.path, "points", ["orders"], session_timeout_ms=300)
    poll_all(dead, 2, most=2)
    dead.commit()
    poll_all(dead, 1, most=1)
    new = Consumer(
        orders.path, "points", ["orders"], session_timeout_ms=300, wait_for_owner_ms=10_000
    )
    assert places(poll_all(new, 2), 0) == [2, 3]
    with pytest.raises(StaleGenerationError, match="generation 1 of"):
        dead.commit()
    new.commit()
    dead.close()  # gives nothing back: it has nothing
    assert new.committed() == {("orders", 0): 4, ("orders", 1): 0}
    new.close()


def test_polling_keeps_the_queues_without_a_commit(orders: LakeFactory) -> None:
    with Consumer(orders.path, "points", ["orders"], session_timeout_ms=400) as consumer:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            consumer.poll(0.05)
            with pytest.raises(GroupBusyError):
                Consumer(orders.path, "points", ["orders"], session_timeout_ms=400)
        consumer.commit()
