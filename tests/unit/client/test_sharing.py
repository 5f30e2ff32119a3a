"""Members of a group share its queues by themselves: they join, leave, and are killed."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError

from tests.support.group_member import member, read_seen
from tests.support.lake_factory import LakeFactory, places, poll_all
from tests.support.wait import DEADLINE_S, wait_until
from txlake import Consumer, GroupBusyError, LakeError, StaleGenerationError, StoreAwayError
from txlake._consumer_offsets import Commit, ConsumerOffsets
from txlake._members import ConsumerMembers
from txlake._queues import QueueBuffers
from txlake._topic_reader import TopicReader

QUEUES = 4


@pytest.fixture
def lake(tmp_path: Path) -> LakeFactory:
    return LakeFactory(tmp_path / "lake")


@pytest.fixture
def orders(lake: LakeFactory) -> LakeFactory:
    lake.make_topic("orders", QUEUES)
    return lake


def ids(consumer: Consumer) -> list[int]:
    return [queue_id for _, queue_id in consumer.assignment()]


def settle(*consumers: Consumer, counts: list[int]) -> None:
    """Let members poll and commit until they have so many queues."""
    deadline = time.monotonic() + DEADLINE_S
    while [len(ids(consumer)) for consumer in consumers] != counts:
        assert time.monotonic() < deadline, [ids(consumer) for consumer in consumers]
        for consumer in consumers:
            assert consumer.poll(0.05) == []
            consumer.commit()


def test_members_that_join_and_leave_share_all_queues(orders: LakeFactory) -> None:
    one = Consumer(orders.path, "points", ["orders"])
    assert ids(one) == [0, 1, 2, 3]
    two = Consumer(orders.path, "points", ["orders"])
    settle(one, two, counts=[2, 2])
    assert ids(one) == [0, 1]  # what stays is what it had
    three = Consumer(orders.path, "points", ["orders"])
    settle(one, two, three, counts=[2, 1, 1])
    two.close()
    settle(one, three, counts=[2, 2])
    one.close()
    settle(three, counts=[4])
    three.close()


@pytest.mark.parametrize("table", [ConsumerMembers, ConsumerOffsets])
def test_a_close_that_fails_is_made_again(
    orders: LakeFactory, table: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.deliver("orders", {0: 2})
    with Consumer(orders.path, "points", ["orders"]) as one:

        def fail(*_arguments: Any) -> Any:
            raise StoreAwayError("the store does not answer")

        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(table, "write", fail)
                with pytest.raises(StoreAwayError):
                    one.close()
        assert ids(one) == [0, 1, 2, 3]  # it goes on, a member and an owner
        assert len(poll_all(one, 2)) == 2
        one.commit()

        one.close()
        with Consumer(orders.path, "points", ["orders"]) as two:  # at once
            assert ids(two) == [0, 1, 2, 3]
            assert two.committed()["orders", 0] == 2


@pytest.mark.parametrize("table", [ConsumerMembers, ConsumerOffsets])
def test_a_close_within_a_close_closes_once(
    orders: LakeFactory, table: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal comes while the handler of the first one writes."""
    consumer = Consumer(orders.path, "points", ["orders"])
    write = table.write
    entered = []

    def write_as_a_signal_comes(written: Any, decide: Any) -> Any:
        entered.append(decide)
        if len(entered) == 1:
            consumer.close()
        return write(written, decide)

    with monkeypatch.context() as patch:
        patch.setattr(table, "write", write_as_a_signal_comes)
        consumer.close()
    assert len(entered) == 2
    with Consumer(orders.path, "points", ["orders"], wait_for_owner_ms=0) as other:
        assert ids(other) == [0, 1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"queues": {"orders": list(range(QUEUES))}}])
def test_a_start_that_fails_keeps_no_queue(
    orders: LakeFactory, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> Any:
        raise LakeError("the topic's table is gone")

    with monkeypatch.context() as patch:
        patch.setattr(QueueBuffers, "add", fail)  # the queues are taken then
        with pytest.raises(LakeError):
            Consumer(orders.path, "points", ["orders"], **options)

    with Consumer(orders.path, "points", ["orders"]) as two:
        assert ids(two) == [0, 1, 2, 3]


def test_a_queue_changes_hands_when_what_was_polled_is_committed(orders: LakeFactory) -> None:
    orders.deliver("orders", {3: 2})
    one = Consumer(orders.path, "points", ["orders"])
    assert places(poll_all(one, 2), 3) == [0, 1]
    with Consumer(orders.path, "points", ["orders"]) as two:
        deadline = time.monotonic() + DEADLINE_S
        while ids(one) != [0, 1, 3]:  # 2 is free to go, 3 is not
            assert time.monotonic() < deadline, ids(one)
            assert one.poll(0.05) == []
            two.poll(0.05)
        orders.deliver("orders", {3: 1})
        assert one.poll(0.2) == []  # nothing more of a queue that is to go
        one.commit()
        assert ids(one) == [0, 1]
        assert places(poll_all(two, 1), 3) == [2]
    one.close()


def test_messages_that_a_filter_leaves_out_keep_no_queue(orders: LakeFactory) -> None:
    """A loop that commits after messages only hands over at once, and is told of no loss."""
    wanted = {"orders": "A"}
    one = Consumer(orders.path, "points", wanted, session_timeout_ms=600_000)
    orders.deliver("orders", dict.fromkeys(range(QUEUES), 2), tags="A")
    poll_all(one, 2 * QUEUES)
    one.commit()
    orders.deliver("orders", dict.fromkeys(range(QUEUES), 3), tags="B")
    wait_until(lambda: one.poll(0.0) == [] and one.position("orders", 3) == 5, "the others pass")

    with Consumer(orders.path, "points", wanted) as two:
        deadline = time.monotonic() + DEADLINE_S
        while [len(ids(one)), len(ids(two))] != [2, 2]:
            assert time.monotonic() < deadline, [ids(one), ids(two)]
            assert one.poll(0.05) == two.poll(0.05) == []
        assert set(two.committed().values()) == {2}
    one.close()


def test_a_queue_that_was_lost_behind_what_a_filter_leaves_out_is_no_error(
    orders: LakeFactory,
) -> None:
    wanted = {"orders": "A"}
    with Consumer(orders.path, "points", wanted, session_timeout_ms=500) as slow:
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 1), tags="A")
        poll_all(slow, QUEUES)
        slow.commit()
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 1), tags="B")
        wait_until(lambda: slow.poll(0.0) == [] and slow.position("orders", 3) == 2, "they pass")
        with Consumer(orders.path, "points", ["orders"], queues={"orders": [0, 1]}):
            slow.commit()  # nothing that it has returned is lost
            assert ids(slow) == [2, 3]


def test_what_was_sought_is_committed_before_a_queue_goes(orders: LakeFactory) -> None:
    orders.deliver("orders", dict.fromkeys(range(QUEUES), 2))
    one = Consumer(orders.path, "points", ["orders"], session_timeout_ms=600_000)
    poll_all(one, 2 * QUEUES)
    one.commit()
    one.seek("orders", 3, 1)
    with Consumer(orders.path, "points", ["orders"]) as two:
        deadline = time.monotonic() + DEADLINE_S
        while ids(one) != [0, 1, 3]:
            assert time.monotonic() < deadline, ids(one)
            assert one.poll(0.05, 0) == two.poll(0.05) == []
        one.commit()
        assert ids(one) == [0, 1]
        assert places(poll_all(two, 1), 3) == [1]
    one.close()


def test_a_queue_whose_messages_are_never_committed_goes_after_a_session(
    orders: LakeFactory,
) -> None:
    orders.deliver("orders", {3: 1})
    one = Consumer(orders.path, "points", ["orders"], session_timeout_ms=1_000)
    poll_all(one, 1)
    with Consumer(orders.path, "points", ["orders"]) as two:
        messages = []
        deadline = time.monotonic() + DEADLINE_S
        while not messages:  # it comes again
            assert time.monotonic() < deadline, ids(one)
            one.poll(0.05)
            messages = two.poll(0.05)
        assert places(messages, 3) == [0]
    one.close()


def test_a_member_that_was_silent_too_long_keeps_what_nobody_took(orders: LakeFactory) -> None:
    orders.deliver("orders", dict.fromkeys(range(QUEUES), 1))
    with Consumer(orders.path, "points", ["orders"], session_timeout_ms=500) as slow:
        assert len(poll_all(slow, QUEUES)) == QUEUES
        # It waits until the session is over.
        with Consumer(orders.path, "points", ["orders"], queues={"orders": [0, 1]}) as fast:
            assert len(poll_all(fast, 2)) == 2
            with pytest.raises(StaleGenerationError, match="taken over orders 0, orders 1: what"):
                slow.commit()
            assert ids(slow) == [2, 3]
            assert set(slow.committed().values()) == {1}
            fast.commit()
        settle(slow, counts=[QUEUES])  # the queues of the one that left
        assert set(slow.committed().values()) == {1}


def test_queues_with_a_fixed_owner_are_not_shared(orders: LakeFactory) -> None:
    with Consumer(orders.path, "points", ["orders"], queues={"orders": [0]}) as fixed:
        one = Consumer(orders.path, "points", ["orders"])
        two = Consumer(orders.path, "points", ["orders"])
        settle(one, two, counts=[2, 1])
        assert ids(fixed) == [0]
        with pytest.raises(GroupBusyError):
            Consumer(orders.path, "points", ["orders"], queues={"orders": [1]}, wait_for_owner_ms=0)
        for consumer in (one, two):
            consumer.close()


def test_members_in_threads_read_each_message_once_while_others_come_and_go(
    orders: LakeFactory,
) -> None:
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def work(life_s: float) -> None:
        while not ended.is_set():
            until = time.monotonic() + life_s
            with Consumer(orders.path, "points", ["orders"]) as consumer:
                while time.monotonic() < until and not ended.is_set():
                    messages = consumer.poll(0.1, 7)
                    seen.extend((m.queue_id, m.queue_offset) for m in messages)
                    consumer.commit()

    threads = [threading.Thread(target=work, args=(life_s,)) for life_s in (60.0, 1.3, 2.1)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 5))
        ended.wait(0.2)  # the pace of the traffic
    wait_until(lambda: len(seen) >= 25 * 5 * QUEUES, "all messages", seen=lambda: len(seen))
    ended.set()
    for thread in threads:
        thread.join()

    assert Counter(seen) == Counter((q, o) for q in range(QUEUES) for o in range(25 * 5))
    for queue_id in range(QUEUES):
        offsets = [offset for queue, offset in seen if queue == queue_id]
        assert offsets == sorted(offsets)


def test_the_queues_of_a_killed_member_go_to_the_others_after_its_session(
    orders: LakeFactory, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with (
        member(orders.path, "points", "orders", first, 2_000) as killed,
        member(orders.path, "points", "orders", second, 2_000),
    ):
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 3))
        wait_until(lambda: len(set(read_seen(first, second))) == 3 * QUEUES, "the messages")
        killed.kill()
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 3))
        wait_until(lambda: len(set(read_seen(first, second))) == 6 * QUEUES, "the messages")


def test_a_service_that_is_stopped_hands_over_at_once(orders: LakeFactory, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with (  # sessions of 10 minutes: nobody waits for their end
        member(orders.path, "points", "orders", first, 600_000) as stopped,
        member(orders.path, "points", "orders", second, 600_000),
    ):
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 3))
        wait_until(lambda: len(read_seen(first, second)) >= 3 * QUEUES, "the messages")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(60) == 0
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 3))
        wait_until(lambda: len(read_seen(first, second)) >= 6 * QUEUES, "the messages")
    expected = Counter((q, o) for q in range(QUEUES) for o in range(6))
    assert Counter(read_seen(first, second)) == expected


def test_latest_is_the_latest_though_the_store_fails_at_a_take(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.deliver("orders", dict.fromkeys(range(QUEUES), 3))
    failures = [StoreAwayError("the store does not answer")]
    read_ends = TopicReader.ends

    def ends(reader: TopicReader, queue_ids: Sequence[int]) -> dict[int, int]:
        if failures:
            raise failures.pop()
        return read_ends(reader, queue_ids)

    one = Consumer(orders.path, "points", ["orders"], auto_offset_reset="latest")
    two = Consumer(orders.path, "points", ["orders"], auto_offset_reset="latest")
    monkeypatch.setattr(TopicReader, "ends", ends)

    deadline = time.monotonic() + DEADLINE_S
    while failures:
        assert time.monotonic() < deadline
        one.poll(0.05)
        with suppress(StoreAwayError):
            two.poll(0.05)
    assert ids(two) == []  # nothing is owned without a position

    settle(one, two, counts=[2, 2])  # it polls: no message comes
    assert {two.position(*queue) for queue in two.assignment()} == {3}
    for consumer in (one, two):
        consumer.close()


@pytest.mark.parametrize("is_conflict", [True, False])
def test_a_take_whose_answer_is_lost_wedges_no_queue(
    orders: LakeFactory, is_conflict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a store's client sends a write again that was there already, or breaks off."""
    one = Consumer(orders.path, "points", ["orders"], session_timeout_ms=60_000)
    two = Consumer(orders.path, "points", ["orders"])
    settle(one, two, counts=[2, 2])

    lost = CommitFailedError("the entry is there") if is_conflict else OSError("reset by peer")
    failures: list[Exception] = [lost]
    write = ConsumerOffsets._write

    def writing(table: ConsumerOffsets, rows: Iterable[Commit], mode: Any) -> None:
        taken = list(rows)
        write(table, taken, mode)
        is_by_one = {row.owner for row in taken} == {one._queues.ownership.owner}
        if failures and is_by_one and len(taken) == 2:
            raise failures.pop()

    monkeypatch.setattr(ConsumerOffsets, "_write", writing)
    two.close()
    deadline = time.monotonic() + DEADLINE_S
    while len(ids(one)) < QUEUES or failures:
        assert time.monotonic() < deadline, (ids(one), failures)
        with suppress(LakeError):
            one.poll(0.05)

    three = Consumer(orders.path, "points", ["orders"])
    settle(one, three, counts=[2, 2])
    one.close()
    three.close()


def test_queues_that_go_together_are_dropped_in_one_go(
    lake: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.make_topic("orders", 40)
    one = Consumer(lake.path, "points", ["orders"])
    one.poll(0.0)
    with Consumer(lake.path, "points", ["orders"]):
        rounds: list[int] = []
        close_unused = QueueBuffers.close_unused

        def closing(buffers: QueueBuffers) -> None:
            rounds.append(len(buffers.positions()))
            close_unused(buffers)

        monkeypatch.setattr(QueueBuffers, "close_unused", closing)
        wait_until(lambda: one.poll(0.0) == [] and len(ids(one)) == 20, "the other's share")
        assert rounds[-1] == 20
        assert rounds.count(40) == len(rounds) - 1  # none in between
    one.close()


def test_a_start_looks_at_a_topic_and_not_at_each_of_its_queues(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.make_topic("bills", 40)
    for topic, count in (("orders", QUEUES), ("bills", 40)):
        orders.deliver(topic, dict.fromkeys(range(count), 1))

    def looks(topic: str) -> int:
        with Consumer(orders.path, "points", [topic]) as consumer:
            poll_all(consumer, len(consumer.assignment()))
            consumer.commit()  # what is committed is compared with each queue's end

        before = len(refreshed)
        Consumer(orders.path, "points", [topic]).close()
        return len(refreshed) - before

    refreshed: list[TopicReader] = []
    refresh = TopicReader.refresh

    def refreshing(reader: TopicReader) -> bool:
        refreshed.append(reader)
        return refresh(reader)

    monkeypatch.setattr(TopicReader, "refresh", refreshing)
    assert looks("orders") == looks("bills")


def test_readers_of_topics_without_a_queue_are_closed(orders: LakeFactory) -> None:
    orders.make_topic("bills", 1)
    names = ["bills", "orders"]
    members = [Consumer(orders.path, "points", names) for _ in range(3)]

    deadline = time.monotonic() + DEADLINE_S
    while any(not each.assignment() for each in members):
        assert time.monotonic() < deadline
        for each in members:
            each.poll(0.05)
            each.commit()

    for each in members:
        readers = each._queues.buffers._readers
        assert readers.keys() == {topic for topic, _ in each.assignment()}
        each.close()


def test_a_running_member_joins_again_where_the_table_was_deleted(orders: LakeFactory) -> None:
    one = Consumer(orders.path, "points", ["orders"], session_timeout_ms=900)
    shutil.rmtree(orders.path / "consumer_members")
    deadline = time.monotonic() + DEADLINE_S
    while not ConsumerMembers(str(orders.path / "consumer_members")).newest():
        assert time.monotonic() < deadline
        one.poll(0.05)
    one.close()


def test_each_change_of_owner_is_a_generation_of_its_own(orders: LakeFactory) -> None:
    for _ in range(3):
        with Consumer(orders.path, "points", ["orders"]):
            pass
    rows = ConsumerOffsets(str(orders.path / "consumer_offsets")).newest().values()
    assert {row.generation for row in rows} == {3}
