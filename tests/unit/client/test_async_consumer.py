"""The consumer for asyncio: what is awaited is what the Consumer does."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from tests.support.lake_factory import LakeFactory
from tests.support.wait import DEADLINE_S
from txlake import (
    AsyncConsumer,
    ClosedError,
    ConsumedMessage,
    Consumer,
    ConsumeStatus,
    LakeError,
    OffsetOutOfRangeError,
    StoreAwayError,
)
from txlake._retries import ConsumerRetries
from txlake.protocol import floor_id


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", 1)
    return lake


def test_messages_are_awaited_committed_and_iterated(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 5})

    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            first = await consumer.poll(DEADLINE_S, 2)
            await consumer.commit()
            assert [message.queue_offset for message in first] == [0, 1]
            assert await consumer.lag() == {("orders", 0): 3}
            async for message in consumer:
                assert message.queue_offset == 2
                break
            await consumer.seek("orders", 0, 1)
            assert len(await consumer.poll(DEADLINE_S)) == 4

        with pytest.raises(LakeError):
            async with AsyncConsumer(orders.path / "nowhere", "points", ["orders"]):
                pass

    asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 2}


def test_a_poll_that_is_cancelled_loses_nothing(orders: LakeFactory) -> None:
    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(60.0), 0.1)
            orders.deliver("orders", {0: 2})
            await consumer.commit()  # does not pass what the poll has taken meanwhile
            assert [message.queue_offset for message in await consumer.poll(DEADLINE_S)] == [0, 1]

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(60.0), 0.1)
            orders.deliver("orders", {0: 1})
            assert [message.queue_offset for message in await consumer.poll(DEADLINE_S)] == [2]
            await consumer.commit()

    asyncio.run(main())


def test_a_shutdown_that_cancels_all_tasks_loses_nothing(orders: LakeFactory) -> None:
    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:

            async def consume() -> None:
                try:
                    await consumer.poll(60.0)
                finally:
                    orders.deliver("orders", {0: 3})  # the thread takes them, nobody sees them
                    await consumer.commit()

            consuming = asyncio.ensure_future(consume())
            await asyncio.sleep(0.2)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(consuming, DEADLINE_S)

    asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert [message.queue_offset for message in consumer.poll(DEADLINE_S)] == [0, 1, 2]


def test_a_poll_that_is_cancelled_as_it_ends_loses_nothing(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 5})

    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            task = asyncio.ensure_future(consumer.poll(60.0))
            while consumer._polling is None:
                await asyncio.sleep(0)
            consumer._polling.add_done_callback(lambda _: task.cancel())

            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await consumer.poll(DEADLINE_S)) == 5

    asyncio.run(main())


def test_an_opening_that_is_cancelled_keeps_no_queue(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.deliver("orders", {0: 5})
    go_on = threading.Event()

    def open_slowly(*arguments: Any) -> Consumer:
        consumer = Consumer(*arguments)
        go_on.wait(60)
        return consumer

    async def main() -> None:
        opening = AsyncConsumer(orders.path, "points", ["orders"])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(opening.__aenter__(), 0.1)
        for _ in range(2):
            await opening.close()

    with monkeypatch.context() as patch:
        patch.setattr("txlake.async_consumer.Consumer", open_slowly)
        asyncio.run(main())
    go_on.set()

    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert len(consumer.poll(DEADLINE_S)) == 5


def test_a_close_that_is_cancelled_gives_the_queues_back(orders: LakeFactory) -> None:
    go_on = threading.Event()

    async def main() -> None:
        consumer = AsyncConsumer(orders.path, "points", ["orders"])
        async with consumer:
            consumer._executor.submit(go_on.wait, 60)  # the thread is at another call
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.close(), 0.1)
            go_on.set()

            async with AsyncConsumer(orders.path, "points", ["orders"]) as other:
                orders.deliver("orders", {0: 5})
                assert len(await other.poll(DEADLINE_S)) == 5
        with pytest.raises(ClosedError):
            await consumer.poll()

    asyncio.run(main())


def test_of_two_tasks_one_gets_a_message_and_a_commit_waits_for_the_poll(
    orders: LakeFactory,
) -> None:
    orders.deliver("orders", {0: 40})

    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:

            async def take(number: int) -> list[int]:
                return [
                    message.queue_offset
                    for _ in range(number)
                    for message in await consumer.poll(DEADLINE_S, 2)
                ]

            taken = await asyncio.gather(take(5), take(5), take(5))
            assert sorted(itertools.chain(*taken)) == list(range(30))

            polling = asyncio.ensure_future(consumer.poll(DEADLINE_S))
            await asyncio.sleep(0)
            await consumer.commit()
            assert [message.queue_offset for message in await polling] == list(range(30, 40))

    asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 40}


def test_a_commit_that_is_cancelled_or_fails_passes_nothing_when_it_is_tried_again(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.deliver("orders", {0: 5})
    go_on = threading.Event()

    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            poll, put_back = consumer.consumer.poll, consumer.consumer._put_back

            def slow_poll(*arguments: Any) -> list[ConsumedMessage]:
                messages = poll(*arguments)
                go_on.wait(60)
                return messages

            failures = [StoreAwayError("the store does not answer")]

            def failing_put_back(*arguments: Any) -> None:
                if failures:
                    raise failures.pop()
                put_back(*arguments)

            monkeypatch.setattr(consumer.consumer, "poll", slow_poll)
            monkeypatch.setattr(consumer.consumer, "_put_back", failing_put_back)
            for call in (consumer.poll(60.0), consumer.commit()):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(call, 0.1)

            go_on.set()
            with pytest.raises(StoreAwayError):
                await consumer.commit()
            await consumer.commit()
            assert [m.queue_offset for m in await consumer.poll(DEADLINE_S)] == [0, 1, 2, 3, 4]

    asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 0}


def test_a_listener_is_awaited_several_times_at_once(orders: LakeFactory, tmp_path: Path) -> None:
    lake = LakeFactory(tmp_path / "two")
    lake.make_topic("orders", 2)
    lake.deliver("orders", {0: 3, 1: 3})
    seen: list[tuple[int, int, int]] = []

    async def main() -> None:
        both_at_once = asyncio.Event()
        waiting = 0

        async def listen(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
            nonlocal waiting
            (message,) = messages
            if message.queue_offset == 0:
                waiting += 1
                if waiting == 2:
                    both_at_once.set()
                await asyncio.wait_for(both_at_once.wait(), 60)

            seen.append((message.queue_id, message.queue_offset, message.reconsume_times))
            if len(seen) == 7:
                consumer.stop()
            is_bad = (message.queue_offset, message.reconsume_times) == (1, 0)
            return ConsumeStatus.RECONSUME_LATER if is_bad and message.queue_id else None

        async with AsyncConsumer(lake.path, "points", ["orders"]) as consumer:
            await consumer.run(listen, threads=2, retry_delays_ms=[100], commit_interval_ms=50)

    asyncio.run(main())
    expected = [(queue_id, offset, 0) for queue_id in (0, 1) for offset in range(3)]
    assert sorted(seen) == sorted([*expected, (1, 1, 1)])


def test_a_listener_gets_what_a_poll_that_was_cancelled_had_taken(orders: LakeFactory) -> None:
    seen: list[int] = []

    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:

            async def listen(messages: Sequence[ConsumedMessage]) -> None:
                seen.extend(message.queue_offset for message in messages)
                if seen[-1] == 4:
                    consumer.stop()

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(60.0), 0.1)
            orders.deliver("orders", {0: 3})
            assert consumer._polling is not None
            await asyncio.wait([consumer._polling])

            orders.deliver("orders", {0: 2})
            await consumer.run(listen, commit_interval_ms=50)

    asyncio.run(main())
    assert seen == [0, 1, 2, 3, 4]
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 5}


@pytest.mark.parametrize("error", [None, ValueError("the application's own")])
def test_a_close_stops_the_run(orders: LakeFactory, error: Exception | None) -> None:
    orders.deliver("orders", {0: 1})

    async def main() -> None:
        came = asyncio.Event()

        async def listen(_messages: Sequence[ConsumedMessage]) -> None:
            came.set()

        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            running = asyncio.ensure_future(consumer.run(listen))
            await asyncio.wait_for(came.wait(), 60)
            try:
                if error is not None:
                    raise error
            finally:
                await asyncio.wait_for(consumer.close(), 60)
                await asyncio.wait_for(running, 60)

    if error is None:
        asyncio.run(main())
    else:
        with pytest.raises(ValueError, match="the application's own"):
            asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 1}


def test_what_would_wait_for_the_run_that_waits_for_it_is_an_error(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 1})
    errors: list[str] = []

    async def main() -> None:
        async def listen(_messages: Sequence[ConsumedMessage]) -> None:
            for call in (
                consumer.poll,
                consumer.commit,
                lambda: consumer.seek("orders", 0, 0),
                consumer.lag,
                lambda: consumer.run(listen),
                consumer.close,
            ):
                try:
                    await call()
                except RuntimeError as error:
                    errors.append(str(error))
            consumer.stop()

        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            await asyncio.wait_for(consumer.run(listen), 90)
            assert await consumer.lag() == {("orders", 0): 0}

        with pytest.raises(ClosedError, match="the consumer is closed"):
            await consumer.poll()
        with pytest.raises(ClosedError, match="the consumer is closed: make another one"):
            await consumer.__aenter__()
        consumer.stop()

    asyncio.run(main())
    assert len(errors) == 6
    assert all(error.startswith("run() is on: ") for error in errors[:5])
    assert errors[5].startswith("close() in a listener would wait")


@pytest.mark.parametrize("timeout_s", [300.0, math.inf])
def test_nothing_waits_for_a_poll_that_was_cancelled(orders: LakeFactory, timeout_s: float) -> None:
    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            for call in (
                lambda: consumer.poll(0.1),
                consumer.commit,
                consumer.lag,
                lambda: consumer.seek("orders", 0, 0),
                consumer.close,
            ):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(consumer.poll(timeout_s), 0.1)
                await asyncio.wait_for(call(), 60)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("reset", "then"), [("earliest", [3, 4, 5]), ("latest", []), ("stop", None)]
)
def test_what_a_cancelled_poll_had_taken_and_retention_deleted_stops_no_call(
    orders: LakeFactory, reset: Any, then: list[int] | None
) -> None:
    async def main() -> None:
        async with AsyncConsumer(
            orders.path, "points", ["orders"], out_of_range_reset=reset
        ) as consumer:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(60.0), 0.1)
            orders.deliver("orders", {0: 3})
            assert consumer._polling is not None
            await asyncio.wait([consumer._polling])
            orders.deliver("orders", {0: 3})
            DeltaTable(orders.table("orders")).delete(
                "queue_offset < 3",
                commit_properties=CommitProperties(app_transactions=[Transaction(floor_id(0), 3)]),
            )

            await consumer.commit()
            if then is None:
                with pytest.raises(OffsetOutOfRangeError):
                    await consumer.poll(DEADLINE_S)
                await consumer.seek("orders", 0, 3)
                assert len(await consumer.poll(DEADLINE_S)) == 3
            else:
                wait_s = DEADLINE_S if then else 2.0
                assert [m.queue_offset for m in await consumer.poll(wait_s)] == then
            await consumer.commit()

    asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 6}


@pytest.mark.parametrize("timeout_s", ["1", None, True, math.nan])
def test_a_timeout_that_is_no_number_is_refused(orders: LakeFactory, timeout_s: Any) -> None:
    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            with pytest.raises(ValueError, match=f"timeout_s {timeout_s!r}: a number of seconds"):
                await consumer.poll(timeout_s)

    asyncio.run(main())


def test_a_task_that_is_cancelled_stops_the_run(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 1})

    async def main() -> None:
        came = asyncio.Event()

        async def listen(_messages: Sequence[ConsumedMessage]) -> None:
            came.set()

        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            task = asyncio.ensure_future(consumer.run(listen))
            await asyncio.wait_for(came.wait(), 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            came.clear()
            orders.deliver("orders", {0: 1})
            task = asyncio.ensure_future(consumer.run(listen))  # another one can follow
            await asyncio.wait_for(came.wait(), 60)
            consumer.stop()
            await asyncio.wait_for(task, 60)

    asyncio.run(main())
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 2}


@pytest.mark.parametrize("is_retry", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_messages_of_a_listener_that_is_cancelled_come_again(
    orders: LakeFactory, is_ordered: bool, is_retry: bool
) -> None:
    orders.deliver("orders", {0: 2})
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        hangs = asyncio.Event()

        async def listen(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
            (message,) = messages
            seen.append((message.queue_offset, message.reconsume_times))
            if message.queue_offset == 0 and message.reconsume_times < is_retry:
                return ConsumeStatus.RECONSUME_LATER
            if message.queue_offset == 0 and not hangs.is_set():
                hangs.set()
                await asyncio.Event().wait()
            if len(seen) >= 3 + is_retry and {0, 1} <= {offset for offset, _ in seen}:
                consumer.stop()
            return None

        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            options: dict[str, Any] = {
                "is_ordered": is_ordered,
                "retries_max": int(is_retry),
                "retry_delays_ms": [0],
                "commit_interval_ms": 50,
            }
            running = asyncio.ensure_future(consumer.run(listen, **options))
            await asyncio.wait_for(hangs.wait(), 60)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 60)
            await asyncio.wait_for(consumer.run(listen, **options), 60)

    asyncio.run(main())
    assert seen.count((0, int(is_retry))) == 2
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.committed() == {("orders", 0): 2}
    retries = ConsumerRetries(str(orders.path / "consumer_retries")).newest().values()
    assert [row.state for row in retries] == ["done"] * is_retry


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_listener_whose_result_cannot_be_awaited_ends_the_run(
    orders: LakeFactory, is_ordered: bool
) -> None:
    orders.deliver("orders", {0: 3})
    seen: list[int] = []

    def plain(messages: Sequence[ConsumedMessage]) -> Any:
        seen.extend(message.queue_offset for message in messages)

    async def listen(messages: Sequence[ConsumedMessage]) -> None:
        plain(messages)

    async def main() -> None:
        async with AsyncConsumer(orders.path, "points", ["orders"]) as consumer:
            for wrong, said in (
                (plain, "cannot be awaited: write `async def`"),
                (None, "a function of"),
            ):
                running = consumer.run(wrong, is_ordered=is_ordered, retries_max=0)  # type: ignore[arg-type]
                with pytest.raises(ValueError, match=f"listener .*: .*{said}"):
                    await asyncio.wait_for(running, 60)

            def stops(messages: Sequence[ConsumedMessage]) -> Any:  # it returns what is awaited
                if messages[0].queue_offset == 2:
                    consumer.stop()
                return listen(messages)

            await asyncio.wait_for(consumer.run(stops, is_ordered=is_ordered), 60)

    asyncio.run(main())
    assert seen == [0, 0, 1, 2]
    assert not (orders.path / "consumer_retries" / "_delta_log" / f"{1:020}.json").exists()
