"""What listeners are handed: lanes of messages, and messages that come again; on some threads."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from queue import Queue as WaitingQueue

from txlake._assignment import Queue
from txlake._consumed_message import ConsumedMessage
from txlake._listener_call import Listener, call_listener
from txlake._queues import Place
from txlake._retries import RetryPolicy

log = logging.getLogger("txlake.consumer")

_TURN_S = 0.1  # of a lane on a thread, when other lanes wait for threads


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How messages are handed to a listener."""

    threads: int
    batch_max: int
    is_ordered: bool
    commit_interval_s: float
    policy: RetryPolicy
    chunk_max: int


@dataclass(slots=True)
class Outcome:
    """What became of one message at one attempt; `reason` None: it is done.

    `generation`: the one by which its queue was held when it was handed out.
    """

    message: ConsumedMessage
    reason: str | None
    at: datetime
    generation: int

    @property
    def queue(self) -> Queue:
        return self.message.topic, self.message.queue_id


@dataclass(slots=True)
class Lane:
    """One queue's messages while it is held once: `messages[done:]` are still to be handed out."""

    queue: Queue
    generation: int  # a queue that was lost and taken again has another one
    position: int  # after all its messages
    messages: list[ConsumedMessage] = field(default_factory=list)
    done: int = 0
    outcomes: deque[Outcome] = field(default_factory=deque)
    is_busy: bool = False
    is_ending: bool = False
    settled: int = 0  # its position when outcomes were last written down
    blocked_until: datetime | None = None  # of an ordered lane: when its first message comes again

    def committable(self) -> int:
        """Returns the offset before which all messages are done or refused."""
        done = self.done  # a thread counts on meanwhile
        return self.messages[done].queue_offset if done < len(self.messages) else self.position

    def note(self, message: ConsumedMessage, reason: str | None) -> None:
        """Notes what became of a message."""
        self.outcomes.append(Outcome(message, reason, _now(), self.generation))


@dataclass(slots=True)
class Retried:
    """A message that comes again, out of its queue's order. `generation`: as of an Outcome."""

    message: ConsumedMessage
    generation: int
    outcomes: deque[Outcome] = field(default_factory=deque)  # none: without an answer

    @property
    def place(self) -> Place:
        return (self.message.topic, self.message.queue_id), self.message.queue_offset


class ListenerThreads:
    """The threads that call the listener, and nothing else."""

    def __init__(self, listener: Listener, options: PushOptions) -> None:
        self._listener = listener
        self._options = options

        self._tasks: SimpleQueue[Lane | Retried | None] = SimpleQueue()
        # No SimpleQueue: of Python 3.11 its get() with a timeout can wait for ever, if items were
        # taken without waiting before.
        self._finished: WaitingQueue[Lane | Retried] = WaitingQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"txlake-listener-{number}", daemon=True)
            for number in range(options.threads)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, task: Lane | Retried) -> None:
        """Gives the next free thread something to do."""
        self._tasks.put(task)

    def take_finished(self, wait_s: float) -> Iterator[Lane | Retried]:
        """Returns what threads have done; waits for some of it."""
        try:
            yield self._finished.get(timeout=wait_s) if wait_s else self._finished.get_nowait()
            while True:
                yield self._finished.get_nowait()
        except Empty:
            return

    def stop(self) -> None:
        """Lets each thread end behind all that it was given."""
        for _ in self._threads:
            self._tasks.put(None)

    def are_alive(self, wait_s: float) -> bool:
        """Returns whether some thread has not ended; waits for that."""
        for thread in self._threads:
            thread.join(wait_s / len(self._threads))
        return any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return

            try:
                self._work_on(task)
            except BaseException:  # the thread goes on: the other queues need it
                with suppress(Exception):  # a handler of the log can be the application's
                    log.exception("a listener's thread failed; its messages come again")
            finally:
                self._finished.put(task)  # nobody hands out a queue that is not finished

    def _work_on(self, task: Lane | Retried) -> None:
        if isinstance(task, Lane):
            self._work_through(task)
            return

        reasons: list[str | None] = ["it was not handed out"]
        try:
            reasons = call_listener(self._listener, [task.message])
        finally:
            for reason in reasons:
                task.outcomes.append(Outcome(task.message, reason, _now(), task.generation))

    def _work_through(self, lane: Lane) -> None:
        """Hands batches of a lane to the listener, for one turn of the thread."""
        until = time.monotonic() + _TURN_S

        while lane.done < len(lane.messages) and not lane.is_ending:
            batch = lane.messages[lane.done : lane.done + self._options.batch_max]
            if batch[0].reconsume_times:
                batch = batch[:1]  # what was refused comes again alone

            reasons = call_listener(self._listener, batch)
            if not reasons:
                return
            if self._options.is_ordered and any(reasons):
                first = next(index for index, reason in enumerate(reasons) if reason)
                for message in batch[:first]:
                    if message.reconsume_times:
                        lane.note(message, None)

                lane.done += first
                lane.blocked_until = datetime.max.replace(tzinfo=timezone.utc)
                # Last: what is settled of it changes the lane's first message.
                lane.note(batch[first], reasons[first])
                return

            # A refusal is there before the lane's position passes it.
            for message, reason in zip(batch, reasons, strict=True):
                if reason or message.reconsume_times:
                    lane.note(message, reason)
            lane.done += len(batch)

            if time.monotonic() >= until:
                return


def _now() -> datetime:
    return datetime.now(timezone.utc)
