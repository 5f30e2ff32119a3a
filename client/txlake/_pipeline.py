"""Many transactions in flight: each local transaction runs once its half is stored."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka import Message as Record

from txlake._counted import counted
from txlake._kafka import HALF_IS_ASKED_ABOUT, failure_reason, failure_text, may_be_stored
from txlake.errors import SendError
from txlake.listener import HalfMessage, LocalTransactionState
from txlake.message import Message
from txlake.results import TransactionSendResult

log = logging.getLogger("txlake.pipeline")


class PipelinedHalf(HalfMessage):
    """One transaction in flight.

    Its own methods take Kafka's reports: with `partial`, which is two objects more for the garbage
    collector to look at, a transaction took 13.8 us of this SDK's time instead of 12.2.
    """

    __slots__ = ("arg", "local_state", "on_done", "pipeline", "remark")

    def __init__(
        self,
        message: Message,
        transaction_id: str,
        arg: Any,
        on_done: Callable[[Any], None] | None,
        pipeline: Pipeline,
    ) -> None:
        HalfMessage.__init__(self, message, (message,), transaction_id)
        self.arg = arg
        self.on_done = on_done
        self.pipeline = pipeline
        self.local_state = LocalTransactionState.UNKNOWN
        self.remark = ""

    def take_report(self, error: KafkaError | None, record: Record) -> None:
        """Takes Kafka's report about the half, on the sender's thread."""
        self.pipeline.take_half_report(self, error, record)

    def take_end_report(self, is_sent: bool) -> None:
        """Takes Kafka's report about the operation, on the sender's thread."""
        self.pipeline.take_end_report(self, is_sent)

    def result(self, is_sent: bool) -> TransactionSendResult:
        """Returns the result of the transaction, once its local transaction has run."""
        return TransactionSendResult(
            self.transaction_id,
            self.queue_id,
            self.queue_offset,
            self.local_state,
            is_sent,
            self.remark,
            (self.queue_offset,),
        )


class Pipeline:
    """The transactions in flight, bounded; threads of its own run local transactions and callbacks.

    One half queue belongs to one thread, so the ends of a half queue keep their order.
    Input: `run_local` runs the local transaction, and gives its end to the operation batcher;
    `running`: the ids of the transactions that have not ended.
    """

    def __init__(
        self,
        run_local: Callable[[PipelinedHalf], None],
        running: set[str],
        in_flight_max: int,
        threads: int,
    ) -> None:
        self._run_local = run_local
        self._running = running
        self._in_flight_max = in_flight_max
        self._in_flight = 0

        # Taken for each transaction: this is quicker than through the condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0

        # Of halves without a callback that were not stored, since the last `drain`.
        self._unreported: list[SendError] = []  # the first error
        self._unreported_count = 0
        self._failures = 0  # local transactions and callbacks, since the last `drain`

        self._is_closed = False
        self._workers = [_Worker(self._work, number) for number in range(threads)]

    def acquire(self, timeout_s: float) -> None:
        """Waits until one more transaction may be in flight. Errors: SendError after the wait."""
        with self._lock:
            if self._in_flight >= self._in_flight_max:
                self._wait_for_room(timeout_s)
            self._in_flight += 1

    def _wait_for_room(self, timeout_s: float) -> None:
        """Waits; a thread of this pipeline does not, since it would wait for itself."""
        if any(threading.current_thread() is worker.thread for worker in self._workers):
            return

        self._waiting += 1
        has_room = self._changed.wait_for(lambda: self._in_flight < self._in_flight_max, timeout_s)
        self._waiting -= 1

        if not has_room:
            raise SendError(
                f"{counted(self._in_flight, 'transaction')} in flight, and none has ended"
            )

    def release(self) -> None:
        """Counts one transaction as no longer in flight."""
        with self._lock:
            self._in_flight -= 1
            if self._waiting:
                self._changed.notify_all()

    def take_half_report(
        self, half: PipelinedHalf, error: KafkaError | None, record: Record
    ) -> None:
        """Takes Kafka's report about a half, on the sender's thread.

        A stored half is queued for its local transaction, and `wake` starts the work.
        """
        offset = None if error is not None else record.offset()
        if offset is None or offset < 0:
            self._fail(half, failure_reason(error, record), may_be_stored(error))
            return

        half.queue_id = record.partition() or 0
        half.queue_offset = offset
        self._workers[half.queue_id % len(self._workers)].items.append((half, None))

    def _fail(self, half: PipelinedHalf, reason: str, is_open: bool) -> None:
        """Finishes a transaction whose half was not stored."""
        error = SendError(
            failure_text("the half was not", reason, is_open, HALF_IS_ASKED_ABOUT),
            half.transaction_id,
        )
        self._running.discard(half.transaction_id)

        if half.on_done is None:
            self._unreported_count += 1
            self._unreported = self._unreported or [error]
            self.release()
        else:
            self._workers[0].items.append((half, error))

    def take_end_report(self, half: PipelinedHalf, is_sent: bool) -> None:
        """Takes Kafka's report about an operation, on the sender's thread."""
        if half.on_done is None:
            self.release()
            return

        worker = self._workers[half.queue_id % len(self._workers)]
        worker.items.append((half, half.result(is_sent)))
        if not worker.has_items.is_set():
            worker.has_items.set()

    def note_failure(self) -> None:
        """Counts a local transaction or a callback that has failed; `drain` says how many."""
        with self._lock:
            self._failures += 1

    def wake(self) -> None:
        """Starts the work on the queued halves, once for each round of delivery reports."""
        for worker in self._workers:
            if worker.items and not worker.has_items.is_set():
                worker.has_items.set()

    def drain(self, timeout_s: float) -> int:
        """Waits until nothing is in flight. Output: how many transactions still are.

        Errors: SendError when a half without a callback was not stored.
        """
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._in_flight == 0, timeout_s)
            self._waiting -= 1

            remaining = self._in_flight
            failures, self._failures = self._failures, 0

        if failures:
            log.warning(
                "%s failed; the job asks the group about a transaction without an end",
                counted(
                    failures, "local transaction or callback", "local transactions or callbacks"
                ),
            )

        errors, self._unreported = self._unreported, []
        count, self._unreported_count = self._unreported_count, 0
        if errors:
            raise SendError(
                f"{counted(count, 'transaction')} could not be begun; the first: {errors[0]}"
            )

        return remaining

    def close(self) -> None:
        """Stops the threads, when all results that are known are handed out.

        No local transaction is begun any more. A thread that hangs, or has more to hand out than a
        second's work, is left behind.
        """
        self._is_closed = True
        for worker in self._workers:
            worker.has_items.set()

        deadline = time.monotonic() + 1.0
        for worker in self._workers:
            if worker.thread is not threading.current_thread():
                worker.thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self, worker: _Worker) -> None:
        while True:
            worker.has_items.wait()
            worker.has_items.clear()
            is_last_round = self._is_closed

            while worker.items:
                half, result = worker.items.popleft()
                if result is not None:
                    self._call_on_done(half, result)
                elif not self._is_closed:  # else the job asks the group about it
                    self._begin_local(half)

            if is_last_round:
                return

    def _begin_local(self, half: PipelinedHalf) -> None:
        """Runs a local transaction; one whose end cannot be sent is left to the job's checks."""
        try:
            self._run_local(half)
        except BaseException:  # it would end the thread, for which other halves wait
            log.exception("the end of transaction %s was not sent", half.transaction_id)
            self.note_failure()
            self._running.discard(half.transaction_id)
            self.take_end_report(half, is_sent=False)

    def _call_on_done(self, half: PipelinedHalf, result: Any) -> None:
        try:
            half.on_done(result)  # type: ignore[misc]  # it has one: it was queued for it
        except BaseException:  # the user's code; the thread goes on for the other halves
            log.exception("on_done of transaction %s failed", half.transaction_id)
            self.note_failure()
        self.release()


class _Worker:
    """A working thread, and the halves that wait for it."""

    def __init__(self, work: Callable[[_Worker], None], number: int) -> None:
        self.items: deque[tuple[Any, Any]] = deque()
        self.has_items = threading.Event()
        self.thread = threading.Thread(
            target=work, args=(self,), name=f"txlake-local-{number}", daemon=True
        )
        self.thread.start()
