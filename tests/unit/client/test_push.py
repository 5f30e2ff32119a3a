"""A listener is handed messages; what it refuses comes again, and is given up in the end."""

from __future__ import annotations

import errno
import itertools
import math
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.counted_queue import CountedQueue
from tests.support.lake_factory import LakeFactory, poll_all
from tests.support.read_bytes import read_bytes
from tests.support.session_clock import SessionClock
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    ClosedError,
    ConsumedMessage,
    Consumer,
    ConsumeStatus,
    LakeError,
    StoreAwayError,
)
from txlake._disk import require_room
from txlake._group_queues import GroupQueues
from txlake._lanes import Lane, ListenerThreads, Outcome, PushOptions
from txlake._push import PushRun
from txlake._retries import Attempt, ConsumerRetries, GroupRetries, RetryPolicy

LATER = ConsumeStatus.RECONSUME_LATER
Place = tuple[int, int]


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", 2)
    return lake


def place(message: ConsumedMessage) -> Place:
    return message.queue_id, message.queue_offset


@contextmanager
def running(
    lake: LakeFactory, listener: Callable[[Sequence[ConsumedMessage]], Any], **options: Any
) -> Iterator[Consumer]:
    """Run a listener in a thread; stop it at the end, and close its consumer."""
    errors: list[BaseException] = []
    with Consumer(lake.path, "points", ["orders"]) as consumer:

        def run() -> None:
            try:
                consumer.run(listener, **{"commit_interval_ms": 100, **options})
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield consumer
        finally:
            consumer.stop()
            thread.join()
        assert errors == []


def rows(lake: LakeFactory, table: str) -> list[dict[str, Any]]:
    path = lake.path / table
    if not any((path / "_delta_log").glob("*.json")):  # the folder is there before its first entry
        return []
    return list(DeltaTable(path).to_pyarrow_table().to_pylist())


def committed(lake: LakeFactory, queue_id: int) -> int | None:
    """Return how far the group is, as another process sees it: a consumer is one thread's."""
    (row,) = (row for row in lake.committed_rows() if row.queue_id == queue_id)
    return row.queue_offset


def share_of(consumer: Consumer) -> list[tuple[str, int]]:
    """Return the queues of a consumer that runs in another thread."""
    while True:
        with suppress(RuntimeError):  # a dict has changed while it was gone through
            return consumer.assignment()


def states(lake: LakeFactory) -> dict[Place, tuple[str, int]]:
    """Return the state of each message that was refused, and how often it was."""
    newest: dict[Place, dict[str, Any]] = {}
    for row in sorted(rows(lake, "consumer_retries"), key=lambda row: row["committed_at"]):
        newest[row["queue_id"], row["queue_offset"]] = row
    return {key: (row["state"], row["retries"]) for key, row in newest.items()}


def test_a_listener_gets_each_queues_messages_in_order_on_several_threads(
    orders: LakeFactory,
) -> None:
    seen: dict[int, list[int]] = defaultdict(list)
    threads = set()
    both_at_once = threading.Barrier(2, timeout=60)

    def listener(messages: Sequence[ConsumedMessage]) -> None:
        if messages[0].queue_offset == 0:
            both_at_once.wait()
        threads.add(threading.current_thread().name)
        seen[messages[0].queue_id] += [message.queue_offset for message in messages]
        assert len(messages) <= 3

    orders.deliver("orders", {0: 40, 1: 30})
    with running(orders, listener, threads=2, batch_max=3) as consumer:
        wait_until(lambda: sum(map(len, seen.values())) == 70, "all messages")
        orders.deliver("orders", {0: 5})
        wait_until(lambda: len(seen[0]) == 45, "the new messages")
        assert consumer.assignment() == [("orders", 0), ("orders", 1)]
    assert seen == {0: list(range(45)), 1: list(range(30))}
    assert len(threads) == 2

    with Consumer(orders.path, "points", ["orders"]) as consumer:  # all was committed
        assert consumer.committed() == {("orders", 0): 45, ("orders", 1): 30}


def test_what_is_refused_comes_again_without_holding_up_its_queue(orders: LakeFactory) -> None:
    seen: list[tuple[Place, int]] = []

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        seen.append((place(message), message.reconsume_times))
        if place(message) == (0, 1) and message.reconsume_times < 2:
            return LATER
        if place(message) == (0, 2) and message.reconsume_times < 1:
            raise ValueError("b'x' is no JSON")
        return None

    orders.deliver("orders", {0: 5, 1: 2})
    with running(orders, listener, retry_delays_ms=[300, 600]):
        wait_until(lambda: len(seen) == 10, "seven messages and three retries", seen=lambda: seen)
        wait_until(lambda: {s for s, _ in states(orders).values()} == {"done"}, "two done")

    first = [at for at, times in seen if times == 0]
    assert [offset for queue_id, offset in first if queue_id == 0] == [0, 1, 2, 3, 4]
    again = [(at, times) for at, times in seen if times]
    assert [times for at, times in again if at == (0, 1)] == [1, 2]
    assert [times for at, times in again if at == (0, 2)] == [1]

    reasons = {
        row["queue_offset"]: [attempt["reason"] for attempt in row["attempts"]]
        for row in rows(orders, "consumer_retries") if row["state"] == "done"
    }  # fmt: skip
    assert reasons == {1: ["RECONSUME_LATER"] * 2, 2: ["ValueError: b'x' is no JSON"]}


def test_a_message_comes_again_not_before_its_delay(orders: LakeFactory) -> None:
    at: list[float] = []

    def listener(_messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        at.append(time.monotonic())
        return LATER if len(at) < 4 else None

    orders.deliver("orders", {0: 1})
    with running(orders, listener, retry_delays_ms=[100, 400, 800]):
        wait_until(lambda: len(at) == 4, "three retries")
    waits = [after - before for before, after in itertools.pairwise(at)]
    assert all(wait >= delay for wait, delay in zip(waits, (0.1, 0.4, 0.8), strict=True))


def test_an_ordered_queue_waits_for_its_message_and_the_others_go_on(orders: LakeFactory) -> None:
    seen: list[tuple[Place, int]] = []

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        seen.extend((place(message), message.reconsume_times) for message in messages)
        is_bad = any(
            place(message) == (0, 3) and message.reconsume_times < 2 for message in messages
        )
        return LATER if is_bad else None

    orders.deliver("orders", {0: 8, 1: 4})
    with running(orders, listener, is_ordered=True, batch_max=2, retry_delays_ms=[300]):
        wait_until(
            lambda: {((0, 7), 0), ((1, 3), 0)} <= set(seen), "all messages", seen=lambda: seen
        )
    assert [at for at in seen if at[0][0] == 1] == [((1, offset), 0) for offset in range(4)]
    # The batch (2, 3) is refused; then its first message comes again, alone, and then 3.
    assert [(offset, times) for (queue_id, offset), times in seen if queue_id == 0] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 0), (4, 0),
        (3, 1), (3, 2), (4, 0), (5, 0), (6, 0), (7, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("is_ordered", [False, True])
def test_what_is_refused_too_often_stands_among_the_dead_letters(
    orders: LakeFactory, is_ordered: bool
) -> None:
    calls: Counter[Place] = Counter()

    def listener(messages: Sequence[ConsumedMessage]) -> None:
        calls[place(messages[0])] += 1
        if messages[0].body == b"x":
            raise ValueError(f"attempt {calls[place(messages[0])]}")

    orders.deliver("orders", {0: 1})
    orders.deliver("orders", {0: 1}, body=b"x", raw_headers=[{"key": "a", "value": b"\xff"}])
    orders.deliver("orders", {0: 1})
    with running(
        orders, listener, is_ordered=is_ordered, retries_max=3, retry_delays_ms=[50]
    ) as consumer:
        wait_until(lambda: states(orders).get((0, 1)) == ("dead", 4), "the end of the message")
        wait_until(lambda: calls[0, 2] == 1, "the message behind it")
        assert consumer.position("orders", 0) == 3
    assert calls == {(0, 0): 1, (0, 1): 4, (0, 2): 1}

    (letter,) = rows(orders, "consumer_dead_letters")
    assert (letter["topic"], letter["queue_id"], letter["queue_offset"]) == ("orders", 0, 1)
    assert (letter["body"], letter["properties"]) == (b"x", [("colour", "red")])
    assert letter["raw_headers"] == [{"key": "a", "value": b"\xff"}]
    reasons = [attempt["reason"] for attempt in letter["attempts"]]
    assert reasons == [f"ValueError: attempt {number}" for number in (1, 2, 3, 4)]

    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed()["orders", 0] == 3


def test_answers_can_speak_of_each_message_of_a_batch(orders: LakeFactory) -> None:
    seen: list[tuple[int, int]] = []

    def listener(messages: Sequence[ConsumedMessage]) -> list[ConsumeStatus | None]:
        seen.extend((message.queue_offset, message.reconsume_times) for message in messages)
        return [
            LATER if message.queue_offset % 2 and not message.reconsume_times else None
            for message in messages
        ]

    orders.deliver("orders", {0: 6})
    with running(orders, listener, batch_max=6, retry_delays_ms=[50]):
        wait_until(lambda: len(seen) == 9, "three retries", seen=lambda: seen)
    assert seen[:6] == [(offset, 0) for offset in range(6)]
    assert sorted(seen[6:]) == [(1, 1), (3, 1), (5, 1)]


@pytest.mark.parametrize("answer", ["done", 0, False, [None, None]])
def test_an_answer_that_is_none_counts_as_later(orders: LakeFactory, answer: Any) -> None:
    answers = iter([answer])
    orders.deliver("orders", {0: 1})
    with running(orders, lambda _messages: next(answers, None), retry_delays_ms=[50]):
        wait_until(lambda: states(orders).get((0, 0)) == ("done", 1), "the retry")


class TextlessError(Exception):
    """An error whose text fails."""

    def __str__(self) -> str:
        return "order " + self.args[0]  # a number


class Unprintable:
    """An answer that cannot be shown."""

    def __init__(self, shown: str | None = None) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        if self._shown is None:
            raise RuntimeError("the session is detached")
        return self._shown


class Unmeasurable(list[None]):
    """A list of answers that cannot be counted."""

    def __len__(self) -> int:
        raise ValueError("the cursor is closed")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (TextlessError(7), "TextlessError: <TextlessError without a text: TypeError>"),
        (
            Unprintable(),
            "the listener answered <Unprintable without a text: RuntimeError>, which is no "
            "ConsumeStatus",
        ),
        ([Unprintable("\ud800")], "the listener answered ?, which is no ConsumeStatus"),
        (Unmeasurable(), "ValueError: the cursor is closed"),
    ],
)
def test_a_queue_goes_on_behind_an_answer_whose_own_code_fails(
    orders: LakeFactory, answer: Any, reason: str
) -> None:
    seen: list[tuple[int, int]] = []

    def listener(messages: Sequence[ConsumedMessage]) -> Any:
        (message,) = messages
        seen.append((message.queue_offset, message.reconsume_times))
        if seen[-1] != (1, 0):
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer

    orders.deliver("orders", {0: 3})
    with running(orders, listener, threads=1, retry_delays_ms=[50]):
        wait_until(lambda: len(seen) == 4, "three and a retry", deadline_s=60, seen=lambda: seen)
    assert sorted(seen) == [(0, 0), (1, 0), (1, 1), (2, 0)]
    (attempt,) = next(
        row["attempts"] for row in rows(orders, "consumer_retries") if row["state"] != "done"
    )
    assert attempt["reason"] == reason


def test_a_thread_that_fails_goes_on_and_its_messages_come_again(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    failing = {(1, 0), (2, 1)}  # a message of a lane, and one that comes again

    def call(_listener: Any, messages: Sequence[ConsumedMessage]) -> list[str | None]:
        places = [(message.queue_offset, message.reconsume_times) for message in messages]
        seen.extend(places)
        if failing & set(places):
            failing.difference_update(places)
            raise MemoryError
        return ["refused" if place == (2, 0) else None for place in places]

    monkeypatch.setattr("txlake._lanes.call_listener", call)
    orders.deliver("orders", {0: 4})
    with running(orders, print, threads=1, retry_delays_ms=[50]):
        wait_until(lambda: (2, 2) in seen, "the second retry", deadline_s=60, seen=lambda: seen)
    assert sorted(seen) == [(0, 0), (1, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]


def test_a_second_signal_within_a_stop_waits_for_nothing(orders: LakeFactory) -> None:
    """A second one can come at each line of the first one's handler."""
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        for line in itertools.count(1):
            lines: list[int] = []
            thread = threading.Thread(
                target=_stop_within_stop, args=(consumer, line, lines), daemon=True
            )
            thread.start()
            wait_until(
                lambda thread=thread: not thread.is_alive(),  # type: ignore[misc]
                f"the end of a stop with another at line {line}",
            )
            if len(lines) < line:
                break

        consumer.run(lambda _: None)  # it ends at its beginning
    assert line > 1


def _stop_within_stop(consumer: Consumer, line: int, lines: list[int]) -> None:
    """Stops a consumer, and again before the Nth line of that; `lines` gets those that it has."""

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == line:
                sys.settrace(None)
                consumer.stop()
        return trace

    sys.settrace(trace)
    try:
        consumer.stop()
    finally:
        sys.settrace(None)


def test_a_stop_ends_one_run_that_is_on_or_the_next_one(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def listener(messages: Sequence[ConsumedMessage]) -> None:
        seen.extend(message.queue_offset for message in messages)
        for _ in range(2):  # twice is once
            consumer.stop()

    orders.deliver("orders", {0: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        consumer.stop()  # a signal that comes before the run
        consumer.run(listener)
        assert seen == []

        for expected in ([0], [0, 1]):
            run_with_deadline(consumer, listener)
            assert seen == expected
            assert consumer.committed()["orders", 0] == len(expected)
            orders.deliver("orders", {0: 1})

        def fail(*_arguments: Any) -> None:
            consumer.stop()
            raise OSError("the table cannot be read")

        with monkeypatch.context() as patch:
            patch.setattr(GroupQueues, "look", fail)
            with pytest.raises(OSError, match="cannot be read"):
                consumer.run(listener)
        consumer.run(listener)  # who runs again after an error ends, too
        assert seen == [0, 1]
        run_with_deadline(consumer, listener)
        assert seen == [0, 1, 2]


@pytest.mark.parametrize("queues", [None, {"orders": [0]}])
@pytest.mark.parametrize("is_failing", [False, True])
def test_a_close_ends_the_run_and_its_end_gives_the_queues_back(
    orders: LakeFactory,
    monkeypatch: pytest.MonkeyPatch,
    queues: dict[str, list[int]] | None,
    is_failing: bool,
) -> None:
    seen: list[int] = []

    def listener(messages: Sequence[ConsumedMessage]) -> None:
        seen.extend(message.queue_offset for message in messages)
        consumer.close()

    def fail(*_arguments: Any) -> None:
        raise LakeError("it cannot be written")

    orders.deliver("orders", {0: 1})
    consumer = Consumer(orders.path, "points", ["orders"], queues=queues)
    with monkeypatch.context() as patch:
        if is_failing:
            patch.setattr(PushRun, "_settle", fail)
            with pytest.raises(LakeError, match="cannot be written"):
                consumer.run(listener)
        else:
            run_with_deadline(consumer, listener)
    consumer.close()
    assert seen == [0]
    with pytest.raises(ClosedError):
        consumer.run(listener)

    with Consumer(orders.path, "points", ["orders"], wait_for_owner_ms=0) as other:
        assert other.assignment() == [("orders", 0), ("orders", 1)]
        assert other.committed()["orders", 0] == (None if is_failing else 1)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_close_just_as_a_run_begins_ends_it(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """A signal comes just before the run looks whether the consumer is open, or just after."""
    check_open = Consumer._check_open

    def check(checked: Consumer) -> None:
        if is_before:
            consumer.close()
        check_open(checked)
        consumer.close()

    def turn(_run: PushRun) -> None:
        raise AssertionError("the run is on")

    consumer = Consumer(orders.path, "points", ["orders"])
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "_check_open", check)
        patch.setattr(PushRun, "_turn", turn)
        with suppress(ClosedError):
            consumer.run(print)
    with pytest.raises(ClosedError):
        consumer.run(print)
    with Consumer(orders.path, "points", ["orders"], wait_for_owner_ms=0) as other:
        assert other.assignment() == [("orders", 0), ("orders", 1)]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_refusal_that_could_not_be_written_down_comes_again_in_the_next_run(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    seen: list[Place] = []
    is_full = True

    def refuse_room(folder: str, size_bytes: int) -> None:
        if is_full and folder.endswith("consumer_retries"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
        require_room(folder, size_bytes)

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        seen.append(place(message))
        if place(message) == (0, 4) and (is_stopped or not is_full):
            consumer.stop()
        return LATER if is_full and place(message) == (0, 1) else None

    monkeypatch.setattr("txlake._compare_and_set.require_room", refuse_room)
    if is_stopped:  # nothing is written down before the end
        monkeypatch.setattr("txlake._push._REFUSED_SETTLE_S", math.inf)
    orders.deliver("orders", {0: 5})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        with pytest.raises(LakeError, match=r"No space left on device\): nothing is lost"):
            consumer.run(listener, commit_interval_ms=3_600_000 if is_stopped else 100)

        is_full = False
        seen.clear()
        for _ in range(2 if is_stopped else 1):  # the stop() of meanwhile ends one more run
            run_with_deadline(consumer, listener)
    assert seen[-4:] == [(0, offset) for offset in range(1, 5)]


def test_a_store_that_is_away_is_waited_for_but_not_at_the_last_commit(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    is_away = threading.Event()
    failed = 0
    commit_kept = GroupQueues.commit_kept

    def failing(queues: GroupQueues, *arguments: Any) -> None:
        nonlocal failed
        if is_away.is_set():
            failed += 1
            raise StoreAwayError("the store does not answer")
        commit_kept(queues, *arguments)

    monkeypatch.setattr("txlake._push._AWAY_PAUSE_S", 0.05)
    monkeypatch.setattr(GroupQueues, "commit_kept", failing)
    orders.deliver("orders", {0: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        stopping = threading.Event()

        def listener(messages: Sequence[ConsumedMessage]) -> None:
            seen.append(messages[0].queue_offset)
            if stopping.is_set():
                is_away.set()
                consumer.stop()

        def go_on() -> None:
            wait_until(lambda: failed >= 3, "a store that is away", seen=lambda: failed)
            is_away.clear()
            wait_until(lambda: committed(orders, 0) == 1, "the commit")
            stopping.set()
            orders.deliver("orders", {0: 1})

        is_away.set()
        thread = threading.Thread(target=go_on)
        thread.start()
        with pytest.raises(StoreAwayError):
            consumer.run(listener, commit_interval_ms=50)
        thread.join()

        is_away.clear()
        assert consumer.committed()["orders", 0] == 1
        consumer.run(listener)  # the stop() of meanwhile ends it
        assert consumer.committed()["orders", 0] == 2
    assert seen == [0, 1]


def run_with_deadline(consumer: Consumer, listener: Callable[..., Any], **options: Any) -> None:
    """Run a listener that stops its consumer."""
    thread = threading.Thread(target=consumer.run, args=(listener,), kwargs=options, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the run is still on"


def test_a_slow_listener_holds_up_its_consumer_and_not_its_session(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SessionClock(monkeypatch)
    began, may_end = threading.Event(), threading.Event()

    def listener(_messages: Sequence[ConsumedMessage]) -> None:
        began.set()
        may_end.wait(DEADLINE_S)

    def shown_at() -> datetime:
        """Return when the slow one has last shown that it lives."""
        owner = slow._queues.ownership.owner
        return max(row.committed_at for row in orders.committed_rows() if row.owner == owner)

    orders.deliver("orders", {0: 3_000})
    with (
        Consumer(orders.path, "points", ["orders"], session_timeout_ms=60_000) as slow,
        Consumer(orders.path, "points", ["orders"], session_timeout_ms=3_600_000) as other,
    ):
        thread = threading.Thread(target=slow.run, args=(listener,), kwargs={"threads": 1})
        thread.start()
        try:
            assert began.wait(DEADLINE_S)
            for _ in range(9):  # three sessions
                clock.pass_s(20.0)
                wait_until(lambda: shown_at() >= clock.now(), "a sign of life", seen=shown_at)
                assert other.poll(0.1) == []
            assert ("orders", 0) in slow.assignment()
            # Back-pressure: of a queue a consumer has no more in hand than a poll() would return.
            assert slow.position("orders", 0) <= 500
        finally:
            slow.stop()
            may_end.set()
            thread.join()
        assert slow.committed()["orders", 0] == slow.position("orders", 0) < 3_000


def test_a_retry_survives_its_consumer_and_is_not_handed_out_twice(orders: LakeFactory) -> None:
    seen: list[tuple[Place, int]] = []

    def refuse(messages: Sequence[ConsumedMessage]) -> ConsumeStatus:
        seen.extend((place(message), message.reconsume_times) for message in messages)
        consumer.stop()  # nothing comes again in this run
        return LATER

    def take(messages: Sequence[ConsumedMessage]) -> None:
        seen.extend((place(message), message.reconsume_times) for message in messages)

    orders.deliver("orders", {0: 2})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        run_with_deadline(consumer, refuse, batch_max=2, retry_delays_ms=[1_000])
    assert states(orders) == {(0, 0): ("waiting", 1), (0, 1): ("waiting", 1)}
    # The group is put back: the messages come again from their rows, not from their queue.
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        consumer.seek("orders", 0, 0)
        consumer.commit()
    with running(orders, take, retry_delays_ms=[1_000]):
        wait_until(lambda: {s for s, _ in states(orders).values()} == {"done"}, "both retries")
    assert sorted(seen) == [((0, 0), 0), ((0, 0), 1), ((0, 1), 0), ((0, 1), 1)]


def test_a_retry_that_is_due_at_a_start_is_read_from_its_topic(orders: LakeFactory) -> None:
    seen: list[tuple[Place, int]] = []

    def listen(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        seen.extend((place(message), message.reconsume_times) for message in messages)
        return LATER if not messages[0].reconsume_times else None

    def refuse_and_stop(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        consumer.stop()  # nothing comes again in this run
        return listen(messages)

    orders.deliver("orders", {0: 1})
    with running(orders, listen, retry_delays_ms=[0], is_ordered=True):
        wait_until(lambda: states(orders).get((0, 0)) == ("done", 1), "the first retry")
    orders.deliver("orders", {0: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        run_with_deadline(consumer, refuse_and_stop, retry_delays_ms=[100])
    assert states(orders).get((0, 1)) == ("waiting", 1)
    row = max(rows(orders, "consumer_retries"), key=lambda row: row["committed_at"])
    wait_until(lambda: datetime.now(timezone.utc) > row["due_at"], "the delay")

    with Consumer(orders.path, "points", ["orders"]) as consumer:
        # Its table was not read yet when the retry is looked for.
        queue = ("orders", 0)
        read, deleted = consumer._queues.buffers.read_places([(queue, 1), (queue, 2)])
        assert (read[queue]["queue_offset"].to_pylist(), deleted) == ([1], [])
    with running(orders, listen, retry_delays_ms=[1_000]):
        wait_until(lambda: states(orders).get((0, 1)) == ("done", 1), "the retry")
    assert seen[-1] == ((0, 1), 1)


def test_retries_that_are_due_together_are_read_together(orders: LakeFactory) -> None:
    for epoch in range(3):  # 400 KB each
        offsets = range(10 * epoch, 10 * epoch + 10)
        orders.write_rows(
            "orders",
            [
                orders.row(queue_id, offset, body=os.urandom(20_000))
                for queue_id in (0, 1)
                for offset in offsets
            ],
        )
    size = sum(path.stat().st_size for path in orders.table("orders").glob("*.parquet"))
    assert size > 60 * 20_000

    with running(orders, lambda _messages: LATER, retry_delays_ms=[500]):
        wait_until(lambda: len(states(orders)) == 60, "all refusals")
    due_at = max(row["due_at"] for row in rows(orders, "consumer_retries"))
    wait_until(lambda: datetime.now(timezone.utc) > due_at, "their delay")

    bodies: dict[Place, int] = {}

    def take(messages: Sequence[ConsumedMessage]) -> None:
        (message,) = messages
        bodies[place(message)] = len(message.body or b"")

    before = read_bytes()
    with running(orders, take):
        wait_until(lambda: len(bodies) == 60, "all retries", seen=lambda: len(bodies))
    assert set(bodies.values()) == {20_000}
    assert read_bytes() - before < 2 * size, (read_bytes() - before, size)


def test_members_with_listeners_hand_over_and_lose_nothing(orders: LakeFactory) -> None:
    seen: list[tuple[Place, int]] = []
    lock = threading.Lock()

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        with lock:
            seen.append((place(message), message.reconsume_times))
        return LATER if message.queue_offset % 10 == 3 and not message.reconsume_times else None

    with running(orders, listener, retry_delays_ms=[400]):
        for _ in range(4):
            orders.deliver("orders", {0: 25, 1: 25})
            with running(orders, listener, retry_delays_ms=[400]) as joined:
                wait_until(lambda: share_of(joined), "a share")
                orders.deliver("orders", {0: 25, 1: 25})
                wait_until(lambda: seen and max(seen)[0][1] > 0, "some messages")
        wait_until(lambda: len(seen) >= 440, "400 messages and 40 retries", seen=lambda: len(seen))

    first = Counter(at for at, times in seen if not times)
    assert first == Counter((queue_id, offset) for queue_id in (0, 1) for offset in range(200))
    again = Counter(at for at, times in seen if times)
    assert again == Counter((q, offset) for q in (0, 1) for offset in range(3, 200, 10))


def test_a_queue_changes_hands_when_its_retry_is_done(orders: LakeFactory) -> None:
    seen: list[tuple[Place, int]] = []
    may_end = threading.Event()

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        seen.append((place(message), message.reconsume_times))
        if message.reconsume_times:
            may_end.wait(DEADLINE_S)
            return None
        return LATER

    orders.deliver("orders", {1: 1})
    with running(orders, listener, retry_delays_ms=[50]) as first:
        wait_until(lambda: ((1, 0), 1) in seen, "the retry")
        with running(orders, listener, retry_delays_ms=[50]) as second:
            wait_until(lambda: first._queues.leaving() or share_of(second), "the other member")
            assert share_of(second) == []
            may_end.set()
            wait_until(lambda: share_of(second), "a share")

            orders.deliver("orders", {1: 1})
            wait_until(lambda: ((1, 1), 1) in seen, "the next retry")

    assert Counter(seen) == Counter(
        {((1, offset), times): 1 for offset in (0, 1) for times in (0, 1)}
    )


def test_a_call_that_hangs_keeps_a_queue_that_is_to_go_for_a_session_at_most(
    orders: LakeFactory,
) -> None:
    hung: list[Place] = []
    seen: list[Place] = []
    may_end = threading.Event()

    def hanging(messages: Sequence[ConsumedMessage]) -> None:
        hung.extend(map(place, messages))
        may_end.wait(DEADLINE_S)

    orders.deliver("orders", {1: 1})
    with Consumer(orders.path, "points", ["orders"], session_timeout_ms=1_000) as first:
        thread = threading.Thread(target=first.run, args=(hanging,))
        thread.start()
        try:
            wait_until(lambda: hung == [(1, 0)], "the call that hangs")
            with running(orders, lambda messages: seen.extend(map(place, messages))):
                wait_until(lambda: seen == [(1, 0)], "the same message", seen=lambda: seen)
                assert not may_end.is_set()  # the call is still in hand
        finally:
            may_end.set()
            first.stop()
            thread.join()


def test_queues_that_are_to_go_are_ended_without_comparing_each_with_all() -> None:
    queues = [CountedQueue(("orders", queue_id)) for queue_id in range(50)]
    positions = {("orders", queue_id): 0 for queue_id in range(100)}
    group: Any = SimpleNamespace(
        take_lost=list,
        leaving=lambda: list(queues),
        seek=lambda _queue, _offset: None,
        ownership=SimpleNamespace(generations=lambda: dict.fromkeys(positions, 1)),
        buffers=SimpleNamespace(positions=lambda: positions),
    )
    retries: Any = SimpleNamespace(look_again=lambda: None)
    options = PushOptions(1, 1, False, 1.0, RetryPolicy((0,), 16), 1)
    letters: Any = None
    run = PushRun(group, retries, letters, print, options, bool)

    CountedQueue.compared = 0
    run._follow_assignment()
    assert CountedQueue.compared <= 3 * 50
    assert [lane.queue for lane in run._lanes.values() if lane.is_ending] == queues


def test_an_attempt_that_two_consumers_make_counts_once(tmp_path: Path) -> None:
    """A consumer that was replaced hands out a message beside its successor."""
    uri = str(tmp_path / "consumer_retries")
    replaced, successor = (GroupRetries(ConsumerRetries(uri), "points") for _ in range(2))
    policy = RetryPolicy((1_000, 2_000), 2)
    queue = ("orders", 0)
    at = datetime.now(timezone.utc)

    def attempt(retries: int, generation: int, reason: str | None = "no") -> Attempt:
        return Attempt(queue, 7, retries, generation, reason, at)

    def row() -> tuple[str, int, int]:
        (row,) = ConsumerRetries(uri).newest().values()
        return row.state, row.retries, len(row.attempts)

    successor.write([attempt(0, 2)], policy)
    assert row() == ("waiting", 1, 1)
    replaced.write([attempt(0, 1)], policy)  # the same attempt
    assert row() == ("waiting", 1, 1)
    successor.write([attempt(1, 2)], policy)
    replaced.write([attempt(1, 1)], policy)
    assert row() == ("waiting", 2, 2)
    assert [each.retries for each in replaced.dying([attempt(2, 1)], policy)] == [3]
    successor.write([attempt(2, 2, None)], policy)
    assert row() == ("done", 2, 2)
    replaced.write([attempt(2, 1)], policy)  # what is done stays done
    assert row() == ("done", 2, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": 0}, "threads 0: 1 or more"),
        ({"batch_max": 0}, "batch_max 0: 1 or more"),
        ({"commit_interval_ms": 0}, "commit_interval_ms 0: 1 or more"),
        ({"retry_delays_ms": [math.nan]}, "at least one, each 0 or more"),
        ({"listener": None}, "listener None: a function of messages"),
        ({"retries_max": -1}, "retries_max -1: 0 or more"),
        ({"retry_delays_ms": []}, r"retry_delays_ms \(\): at least one"),
        ({"retry_delays_ms": [-1]}, r"retry_delays_ms \(-1,\): at least one, each 0 or more"),
        ({"retry_delays_ms": [10**17]}, r"retry_delays_ms \(10{17},\): .* up to 315360000000"),
        ({"retry_delays_ms": ["1s"]}, r"retry_delays_ms \('1s',\): at least one"),
        ({"retry_delays_ms": 1_000}, "retry_delays_ms 1000: at least one"),
        ({"retries_max": math.nan}, "retries_max nan: 0 or more"),
        ({"threads": 1.5}, "threads 1.5: 1 or more"),
        ({"batch_max": True}, "batch_max True: 1 or more"),
    ],
)
def test_wrong_options_are_refused(orders: LakeFactory, options: dict[str, Any], said: str) -> None:
    with (
        Consumer(orders.path, "points", ["orders"]) as consumer,
        pytest.raises(ValueError, match=said),
    ):
        consumer.run(**{"listener": lambda _messages: None, **options})


def test_an_ordered_queue_that_was_to_go_and_stays_is_read_on(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is refused as it is to go, and the store fails as that is written down."""
    orders.deliver("orders", {0: 5})
    seen: list[int] = []
    is_leaving = False
    failures = [StoreAwayError("the store does not answer")]
    leaving, write_down = GroupQueues.leaving, PushRun._write_down

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        nonlocal is_leaving
        seen.append(messages[0].queue_offset)
        is_leaving = len(seen) == 1
        return LATER if is_leaving else None

    def all_leaving(queues: GroupQueues) -> list[tuple[str, int]]:
        return list(queues.buffers.positions()) if is_leaving else leaving(queues)

    def failing(run: PushRun) -> None:
        nonlocal is_leaving
        if run._unsettled and failures:
            is_leaving = False
            raise failures.pop()
        write_down(run)

    monkeypatch.setattr(GroupQueues, "leaving", all_leaving)
    monkeypatch.setattr(PushRun, "_write_down", failing)
    with running(orders, listener, threads=1, is_ordered=True, retry_delays_ms=[100]):
        wait_until(lambda: len(seen) == 6, "all messages", seen=lambda: seen)
    assert seen == [0, 0, 1, 2, 3, 4]
    assert failures == []


@pytest.mark.parametrize("retries_max", [0, 1])
def test_an_ordered_queue_stands_behind_its_dead_message_when_a_run_is_stopped(
    orders: LakeFactory, retries_max: int
) -> None:
    """Its last refusal is not written down yet."""
    seen: list[tuple[int, int]] = []

    def refuse(messages: Sequence[ConsumedMessage]) -> ConsumeStatus:
        seen.extend((message.queue_offset, message.reconsume_times) for message in messages)
        if messages[0].reconsume_times == retries_max:
            consumer.stop()
        return LATER

    def take(messages: Sequence[ConsumedMessage]) -> None:
        seen.extend((message.queue_offset, message.reconsume_times) for message in messages)

    options: dict[str, Any] = {"is_ordered": True, "retry_delays_ms": [0]}
    orders.deliver("orders", {0: 3})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        run_with_deadline(consumer, refuse, retries_max=retries_max, **options)
        assert seen == [(0, times) for times in range(retries_max + 1)]
        assert states(orders) == {(0, 0): ("dead", retries_max + 1)}
        assert consumer.committed()["orders", 0] == consumer.position("orders", 0) == 1

    seen.clear()
    with running(orders, take, **options):
        wait_until(lambda: (2, 0) in seen, "the last message", seen=lambda: seen)
    assert seen == [(1, 0), (2, 0)]


def test_an_ordered_queue_goes_to_another_member_without_its_dead_message(
    orders: LakeFactory,
) -> None:
    seen: list[Place] = []

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        seen.append(place(message))
        if message.queue_offset:
            return None
        wait_until(lambda: first._queues.leaving(), "the other member")
        return LATER

    options: dict[str, Any] = {"is_ordered": True, "retries_max": 0}
    orders.deliver("orders", {1: 3})
    with running(orders, listener, **options) as first:
        wait_until(lambda: seen, "the first message")
        with running(orders, listener, **options) as second:
            wait_until(lambda: (1, 2) in seen, "the last message", seen=lambda: seen)
            assert share_of(second) == [("orders", 1)]
    assert seen == [(1, 0), (1, 1), (1, 2)]
    assert states(orders) == {(1, 0): ("dead", 1)}


def test_a_refusal_of_a_queue_that_was_lost_does_not_end_its_message(orders: LakeFactory) -> None:
    """The queue came back before the refusal could be written down; a thread has the message."""
    orders.deliver("orders", {0: 2})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        messages = poll_all(consumer, 2)
    queue = ("orders", 0)
    stored: list[dict[tuple[str, int], int]] = []
    group: Any = SimpleNamespace(
        ownership=SimpleNamespace(generations=lambda: {queue: 2}),
        commit_kept=lambda positions, _busy: stored.append(positions),
    )
    retries: Any = SimpleNamespace(row=lambda _queue, _offset: None)
    options = PushOptions(1, 1, True, 1.0, RetryPolicy((0,), 16), 2)
    letters: Any = None
    run = PushRun(group, retries, letters, print, options, bool)

    lane = Lane(queue, 2, 2, messages, is_busy=True)
    run._lanes[queue] = lane
    run._unsettled = [Outcome(messages[0], "no", datetime.now(timezone.utc), 1)]
    run._settle()
    assert (lane.done, stored) == (0, [{queue: 0}])


def test_an_ordered_message_waits_though_the_store_failed_as_retries_were_read(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Place, int]] = []
    failures: list[StoreAwayError] = []
    look_again = GroupRetries.look_again

    def listener(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        seen.append((place(message), message.reconsume_times))
        consumer.stop()
        return LATER if message.queue_id == 0 else None

    def failing(retries: GroupRetries) -> None:
        if failures:
            raise failures.pop()
        look_again(retries)

    options: dict[str, Any] = {
        "threads": 1, "is_ordered": True, "retry_delays_ms": [3_600_000],
    }  # fmt: skip
    orders.deliver("orders", {0: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        run_with_deadline(consumer, listener, **options)
    assert states(orders) == {(0, 0): ("waiting", 1)}

    monkeypatch.setattr("txlake._push._AWAY_PAUSE_S", 0.05)
    monkeypatch.setattr(GroupRetries, "look_again", failing)
    failures.append(StoreAwayError("the store does not answer"))
    orders.deliver("orders", {1: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        run_with_deadline(consumer, listener, **options)
    assert failures == []
    assert seen == [((0, 0), 0), ((1, 0), 0)]


def test_a_run_that_ends_while_the_store_is_away_passes_no_message(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue was taken, and retries of it cannot be read, while others have messages in hand."""
    seen: list[int] = []
    may_end = threading.Event()
    is_away = False
    look, look_again, stop = GroupQueues.look, GroupRetries.look_again, ListenerThreads.stop

    def listener(messages: Sequence[ConsumedMessage]) -> None:
        nonlocal is_away
        seen.extend(message.queue_offset for message in messages)
        if len(seen) == 1:
            orders.catalog_row("orders", 3)
            is_away = True
            may_end.wait(DEADLINE_S)

    def failing_look(queues: GroupQueues, *arguments: Any) -> None:
        look(queues, *arguments)
        if ("orders", 2) in queues.buffers.positions() and is_away:
            consumer.stop()
            raise StoreAwayError("the store does not answer")

    def failing_look_again(retries: GroupRetries) -> None:
        if ("orders", 2) in consumer._queues.buffers.positions() and is_away:
            raise StoreAwayError("the store does not answer")
        look_again(retries)

    def stop_threads(threads: ListenerThreads) -> None:
        stop(threads)
        may_end.set()

    monkeypatch.setattr("txlake._push._AWAY_PAUSE_S", 0.05)
    monkeypatch.setattr(GroupQueues, "look", failing_look)
    monkeypatch.setattr(GroupRetries, "look_again", failing_look_again)
    monkeypatch.setattr(ListenerThreads, "stop", stop_threads)
    orders.deliver("orders", {0: 5})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        run_with_deadline(consumer, listener)
        assert seen == [0]

        is_away = False
        assert consumer.position("orders", 0) == 1
        consumer.commit()
        assert consumer.committed()["orders", 0] == 1
