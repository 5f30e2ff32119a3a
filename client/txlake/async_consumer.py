"""A consumer for asyncio: a thin front of the Consumer, which works on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from txlake._consumed_message import ConsumedMessage
from txlake.consumer import Consumer
from txlake.errors import UnknownTopicError

_ResultT = TypeVar("_ResultT")


class AsyncConsumer:
    """A Consumer whose calls are awaited: `async with AsyncConsumer(lake, group, topics) as c`.

    It takes what Consumer takes. `async with` opens it, and gives its queues back at the end.
    Tasks can share one: each message is returned to one of them, and a commit covers them all.
    Errors: those of Consumer, from the call that is awaited.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open = partial(Consumer, *args, **kwargs)
        self._consumer: Consumer | None = None
        self._polling: asyncio.Future[list[ConsumedMessage]] | None = None  # not returned yet
        self._is_giving_back = False  # what it has; begun and not ended
        # Of poll, commit, seek and the start of a run: another task's call begins when this one's
        # has ended.
        self._lock = asyncio.Lock()
        # One thread: only one at a time may use a consumer.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="txlake-async")

    async def __aenter__(self) -> AsyncConsumer:
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
        async with self._lock:
            if self._is_giving_back:
                await self._give_back()
            if self._polling is None:
                self._polling = asyncio.ensure_future(
                    self._call(self.consumer.poll, timeout_s, max_records)
                )

            messages = await self._polled(self._polling)
            self._polling = None
            return messages

    async def commit(self) -> None:
        """Stores that the group is past all that poll() has returned."""
        async with self._lock:
            await self._give_back()
            await self._call(self.consumer.commit)

    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Goes on at another offset of a queue; commit() stores it."""
        async with self._lock:
            await self._give_back()
            await self._call(self.consumer.seek, topic, queue_id, offset)

    async def lag(self) -> dict[tuple[str, int], int]:
        """Returns how many messages each (topic, queue) holds after the position."""
        return await self._call(self.consumer.lag)

    async def run(
        self, listener: Callable[[Sequence[ConsumedMessage]], Awaitable[Any]], **options: Any
    ) -> None:
        """Awaits a listener with messages until stop(), as `Consumer.run` with `options`.

        `threads` is how many calls of the listener are awaited at once. What a poll() that was
        cancelled had taken, the listener gets. A task that is cancelled stops the run, and waits
        for the calls in hand.
        """
        loop = asyncio.get_running_loop()

        async def answer(messages: Sequence[ConsumedMessage]) -> Any:
            return await listener(messages)

        def call(messages: Sequence[ConsumedMessage]) -> Any:
            return asyncio.run_coroutine_threadsafe(answer(messages), loop).result()

        async with self._lock:  # a run commits: it begins before what nobody has seen
            await self._give_back()
            running = loop.run_in_executor(
                self._executor, partial(self.consumer.run, call, **options)
            )

        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise

    def stop(self) -> None:
        """Ends run() when the messages in hand are done."""
        self.consumer.stop()

    async def close(self) -> None:
        """Gives the queues back."""
        if self._consumer is not None:
            await self._call(self._close_consumer)
        self._executor.shutdown(wait=False)

    @property
    def consumer(self) -> Consumer:
        """Returns the Consumer behind it. Errors: RuntimeError before `async with`."""
        if self._consumer is None:
            raise RuntimeError("use `async with AsyncConsumer(...) as consumer`")
        return self._consumer

    def _open_consumer(self) -> None:
        self._consumer = self._open()

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    async def _give_back(self) -> None:
        """Goes back to before messages that a cancelled poll() has taken and not returned.

        A call that is cancelled, or fails, is begun again by the next one.
        """
        if self._polling is None:
            return

        self._is_giving_back = True
        firsts: dict[tuple[str, int], int] = {}
        for message in await self._polled(self._polling):
            firsts.setdefault((message.topic, message.queue_id), message.queue_offset)

        for (topic, queue_id), offset in firsts.items():
            with suppress(UnknownTopicError):  # another consumer has the queue now
                await self._call(self.consumer.seek, topic, queue_id, offset)

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
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
