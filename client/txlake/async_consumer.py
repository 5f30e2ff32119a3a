"""A consumer for asyncio: a thin front of the Consumer, which works on a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from txlake._consumed_message import ConsumedMessage
from txlake._listener_call import NoAnswerError
from txlake._numbers import require_seconds
from txlake._process import ProcessGuard
from txlake.consumer import Consumer
from txlake.errors import ClosedError

_ResultT = TypeVar("_ResultT")

_POLL_PART_S = 0.5  # a poll that nobody awaits any more ends so soon


class AsyncConsumer:
    """A Consumer whose calls are awaited: `async with AsyncConsumer(lake, group, topics) as c`.

    It takes what Consumer takes. `async with` opens it, and gives its queues back at the end.
    Tasks can share one: each message is returned to one of them, and a commit covers them all.
    Errors: those of Consumer, from the call that is awaited; RuntimeError of a call that would
    wait for a run(), by whose listener it can be made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open = partial(Consumer, *args, **kwargs)
        self._consumer: Consumer | None = None
        self._guard = ProcessGuard("consumer")  # a child has no thread that could answer
        self._is_closed = False
        self._running: Future[None] | None = None
        self._listening: set[asyncio.Task[Any] | None] = set()  # the calls of the listener
        self._polling: asyncio.Future[list[ConsumedMessage]] | None = None  # not returned yet
        self._poll_until = 0.0  # monotonic s; the thread looks at it
        self._is_giving_back = False  # what it has; begun and not ended
        # Of all that needs the thread: another task's call begins when this one's has ended.
        self._lock = asyncio.Lock()
        # One thread: only one at a time may use a consumer.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="txlake-async")

    async def __aenter__(self) -> AsyncConsumer:
        if self._is_closed:
            raise ClosedError("the consumer is closed: make another one")
        self._guard = ProcessGuard("consumer")
        try:
            await self._call(self._open_consumer)
        except BaseException:  # cancelled: the thread goes on, and would keep the queues
            self._executor.submit(self._close_consumer)
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[ConsumedMessage]:
        """Returns messages one by one, for ever; a commit covers all that were polled together."""
        while True:
            for message in await self.poll():
                yield message

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[ConsumedMessage]:
        """Returns the next messages, as `Consumer.poll`.

        What a call that was cancelled would have returned, the next one returns.
        """
        require_seconds("timeout_s", timeout_s)
        async with self._turn() as consumer:
            if self._is_giving_back:
                await self._give_back()

            self._poll_until = time.monotonic() + timeout_s
            if self._polling is None:
                # No task: a shutdown that cancels all tasks would drop what the thread takes.
                self._polling = self._begin(self._poll_in_parts, consumer, max_records)

            messages = await self._polled(self._polling)
            self._polling = None
            return messages

    async def commit(self) -> None:
        """Stores that the group is past all that poll() has returned."""
        async with self._turn() as consumer:
            await self._give_back()
            await self._call(consumer.commit)

    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Goes on at another offset of a queue; commit() stores it."""
        async with self._turn() as consumer:
            await self._give_back()
            await self._call(consumer.seek, topic, queue_id, offset)

    async def lag(self) -> dict[tuple[str, int], int]:
        """Returns how many messages each (topic, queue) holds after the position."""
        async with self._turn() as consumer:
            await self._give_back()
            return await self._call(consumer.lag)

    async def run(
        self, listener: Callable[[Sequence[ConsumedMessage]], Awaitable[Any]], **options: Any
    ) -> None:
        """Awaits a listener with messages until stop(), as `Consumer.run` with `options`.

        `threads` is how many calls of the listener are awaited at once. What a poll() that was
        cancelled had taken, the listener gets. A task that is cancelled stops the run, and waits
        for the calls in hand. A call of the listener that is cancelled has neither done nor refused
        its messages: they come again. The listener calls nothing of this consumer but stop().
        Errors: ValueError, too, for a listener whose result cannot be awaited: at its first one.
        """
        if not callable(listener):
            raise ValueError(f"listener {listener!r}: a function of messages")
        loop = asyncio.get_running_loop()
        wrong = ""  # what is wrong with the listener

        async def answer(messages: Sequence[ConsumedMessage]) -> Any:
            nonlocal wrong
            task = asyncio.current_task()
            self._listening.add(task)
            try:
                answered: Any = listener(messages)
                if not inspect.isawaitable(answered):
                    wrong = (
                        f"listener {listener!r}: its result cannot be awaited: write `async def`"
                    )
                    self._stop_running()
                    raise NoAnswerError(wrong)
                return await answered
            finally:
                self._listening.discard(task)

        def call(messages: Sequence[ConsumedMessage]) -> Any:
            calling = asyncio.run_coroutine_threadsafe(answer(messages), loop)
            try:
                return calling.result()
            except CancelledError:
                if calling.cancelled():
                    raise NoAnswerError("a call of the listener was cancelled") from None
                raise  # of a future of the application's own

        async with self._turn() as consumer:  # a run commits: it begins before what nobody saw
            await self._give_back()
            self._running = self._executor.submit(partial(consumer.run, call, **options))

        running = asyncio.wrap_future(self._running)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._stop_running()
            await running
            raise
        if wrong:
            raise ValueError(wrong)

    def stop(self) -> None:
        """Ends run() when the messages in hand are done, as `Consumer.stop`."""
        if not self._is_closed and self._guard.is_here:
            self.consumer.stop()

    async def close(self) -> None:
        """Ends a run() that is on, as stop() does, and gives the queues back.

        In a process that forked it does nothing: the queues are its parent's.
        Errors: LakeError: try again; RuntimeError in a listener, which the run waits for.
        """
        if not self._guard.is_here:
            return

        if asyncio.current_task() in self._listening:
            raise RuntimeError("close() in a listener would wait for that listener: call stop()")

        self._stop_running()
        self._poll_until = 0.0
        if self._consumer is not None:  # cancelled: the thread goes on, and would keep the queues
            await asyncio.shield(self._begin(self._close_consumer))
        self._executor.shutdown(wait=False)

    @property
    def consumer(self) -> Consumer:
        """Returns the Consumer behind it.

        Errors: RuntimeError before `async with`; ClosedError after close(), or in a process that
        forked.
        """
        self._guard.check()
        if self._is_closed:
            raise ClosedError("the consumer is closed")
        if self._consumer is None:
            raise RuntimeError("use `async with AsyncConsumer(...) as consumer`")
        return self._consumer

    def _open_consumer(self) -> None:
        self._consumer = self._open()

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
            self._is_closed = True

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[Consumer]:
        """Lets one task at a time use the consumer.

        Errors: as of `consumer`; RuntimeError while a run is on.
        """
        _ = self.consumer  # in a child the lock can stay as the parent's task has left it
        async with self._lock:
            if self._is_running():
                raise RuntimeError(
                    "run() is on: it polls and commits by itself; call stop(), and this when it "
                    "has ended"
                )
            yield self.consumer

    def _is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def _stop_running(self) -> None:
        """Stops a run that is on, and no later one."""
        if self._consumer is not None and self._is_running():
            self._consumer.stop()

    def _poll_in_parts(self, consumer: Consumer, max_records: int | None) -> list[ConsumedMessage]:
        """Returns the next messages; waits for some as long as a task does."""
        while True:
            part_s = min(self._poll_until - time.monotonic(), _POLL_PART_S)
            messages = consumer.poll(part_s, max_records)
            if messages or time.monotonic() >= self._poll_until:
                return messages

    async def _give_back(self) -> None:
        """Goes back to before messages that a cancelled poll() has taken and not returned.

        A call that is cancelled, or fails, is begun again by the next one.
        """
        if self._polling is None:
            return

        self._is_giving_back = True
        self._poll_until = 0.0
        messages = await self._polled(self._polling)
        await self._call(self.consumer._put_back, messages)
        self._polling = None
        self._is_giving_back = False

    async def _polled(
        self, polling: asyncio.Future[list[ConsumedMessage]]
    ) -> list[ConsumedMessage]:
        """Returns what a poll has taken; one that failed has taken nothing.

        The caller can be cancelled in the very turn of the loop in which the poll ends: what it
        took stays here then.
        """
        try:
            return await asyncio.shield(polling)
        except BaseException:
            if polling.done() and (polling.cancelled() or polling.exception() is not None):
                self._polling = None
                self._is_giving_back = False
            raise

    async def _call(self, function: Callable[..., _ResultT], *args: Any) -> _ResultT:
        return await self._begin(function, *args)

    def _begin(self, function: Callable[..., _ResultT], *args: Any) -> asyncio.Future[_ResultT]:
        return asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
