"""A producer of messages that are delivered if a local transaction commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from txlake import protocol
from txlake._checks import CheckAnswerer, require_consumer
from txlake._half import HalfSender
from txlake._identifiers import TransactionIds
from txlake._kafka import REPORT_S, KafkaSender, Reports, client_settings
from txlake._numbers import INT_MAX, require_seconds
from txlake._operations import OperationBatcher
from txlake._pipeline import Pipeline, PipelinedHalf
from txlake._process import ProcessGuard
from txlake.errors import ClosedError, NoListenerError, SendError
from txlake.listener import (
    HalfMessage,
    LocalTransactionState,
    TransactionListener,
    call_safely,
)
from txlake.message import Message, require_message, require_set
from txlake.options import ProducerOptions, checked_options
from txlake.ordering import QueueCounts, checked_counts
from txlake.results import TransactionSendResult
from txlake.signing import SigningKey, group_keys

Execute = Callable[[HalfMessage, Any], LocalTransactionState]
OnDone = Callable[["TransactionSendResult | SendError"], None]


class TransactionProducer:
    """A producer of messages that are delivered if, and only if, a local transaction commits.

    A transaction has three steps. 1: send the half and wait until Kafka has it. 2: run the local
    transaction. 3: send its end as an operation. When 1 fails, 2 does not run. When 3 fails, or
    the process dies before it, the job asks the group how the transaction ended. A live producer
    with a listener answers these checks in the background, for any producer of its group.

    `client` holds further settings of the Kafka clients (security, SASL). `keys` are the group's,
    as the job has them: the first one signs operations, and only checks that are signed with one of
    them are answered. `queue_counts` say how many queues each topic has, for messages with an
    ordering key: a dict, or LakeQueueCounts. A producer can be made without a broker.
    Errors: ValueError for a group's name, a setting or keys that are not allowed; for a group whose
    check topic Kafka refuses, since another differs from it by '.' and '_' alone.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        producer_group: str,
        listener: TransactionListener | None = None,
        *,
        options: ProducerOptions | None = None,
        client: Mapping[str, Any] | None = None,
        keys: Sequence[SigningKey] = (),
        queue_counts: QueueCounts | None = None,
    ) -> None:
        keys = group_keys(keys)
        queue_counts = checked_counts(queue_counts)
        if not protocol.matches(protocol.GROUP_PATTERN, producer_group):
            raise ValueError(f"producer_group {producer_group!r}: {protocol.GROUP_PATTERN}")

        if isinstance(listener, type) or not (
            listener is None or hasattr(listener, "check_local_transaction")
        ):
            raise ValueError(f"listener {listener!r}: an instance of a TransactionListener")

        self._options = options = checked_options(options)
        settings = client_settings(bootstrap_servers, client)
        if listener is not None:
            require_consumer(settings, options)

        self._listener = listener
        self._ids = TransactionIds()
        self._guard = ProcessGuard("producer")
        self._running: set[str] = set()
        self._calls = _Calls()
        self._is_closed = False
        self._timeout_s = options.send_timeout_ms / 1000

        self._sender = KafkaSender(settings, options)
        self._operations = OperationBatcher(
            self._sender,
            options.op_topic,
            producer_group,
            options.operation_linger_ms,
            options.operation_ends_max,
            keys[0] if keys else None,
        )
        self._halves = HalfSender(
            self._sender, self._operations, producer_group, options, queue_counts
        )

        local = _LocalTransactions(listener, self._operations, self._running)
        self._pipeline = Pipeline(
            local.run, self._running, options.in_flight_max, options.local_transaction_threads
        )
        self._sender.after_poll = self._pipeline.wake

        checks = None
        if listener is not None:
            checks = CheckAnswerer(
                settings,
                producer_group,
                listener,
                self._operations,
                self._running.__contains__,
                options,
                keys,
            )

        self._parts = _Parts(
            self._calls,
            self._pipeline,
            checks,
            self._operations,
            self._sender,
            options.close_timeout_ms,
        )
        self._finalizer = self._guard.close_when_dropped(self, self._parts.close)

        if checks is not None:
            try:
                checks.require_possible()
            except ValueError:
                self.close()
                raise

    def __enter__(self) -> TransactionProducer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, execute: Execute | None = None
    ) -> TransactionSendResult:
        """Sends one message in a transaction; runs the local transaction on this thread.

        `arg` is passed to the listener. `execute` runs instead of the listener's method; a
        producer without a listener needs it, and does not answer checks.
        Errors: SendError, UnknownTopicError, NoListenerError, ClosedError: the local transaction
        did not run. MessageError for a message beyond the options' limits, LakeError for queue
        counts that cannot be read, before anything is sent. When the operation fails nothing is
        raised: the result's `operation_sent` is False.
        """
        return self.send_messages_in_transaction((message,), arg, execute=execute)

    def send_messages_in_transaction(
        self, messages: Sequence[Message], arg: Any = None, *, execute: Execute | None = None
    ) -> TransactionSendResult:
        """Sends several messages in one transaction: all are delivered, or none.

        All go to the half queue of the first. The local transaction runs once, for the first half,
        whose `messages` has all. When some halves could not be stored, the others are rolled back.
        Errors: as `send_message_in_transaction`; MessageError for none or more than messages_max.
        """
        require_set(messages, self._options.messages_max)
        run = self._executor(execute)  # first: in a process that forked a lock can stay taken

        with self._calls.note():
            return self._send_and_wait(messages, arg, run)

    def _send_and_wait(
        self, messages: Sequence[Message], arg: Any, run: Execute
    ) -> TransactionSendResult:
        now_ms = time.time_ns() // 1_000_000
        half = HalfMessage(messages[0], tuple(messages), self._ids.next(now_ms))
        self._running.add(half.transaction_id)

        try:
            half_offsets = self._halves.store(half, now_ms)
            state, remark = call_safely(run, half, arg)

            end = Reports(1)
            self._operations.add(
                half.queue_id,
                half_offsets,
                half.transaction_id,
                state.value,
                end.sent,
                [(protocol.REMARK, remark)] if remark else (),
            )
            end.wait(self._timeout_s + REPORT_S)
        finally:
            self._running.discard(half.transaction_id)

        return TransactionSendResult(
            half.transaction_id,
            half.queue_id,
            half.queue_offset,
            state,
            end.failure is None,
            remark,
            tuple(half_offsets),
        )

    def send_pipelined(
        self, message: Message, arg: Any = None, on_done: OnDone | None = None
    ) -> str:
        """Sends one message in a transaction without waiting. Output: its transaction id.

        The local transaction runs on a thread of the producer (`local_transaction_threads`), in
        the order of sending for each half queue. `on_done` is called there with the result, or
        with the SendError of a half that was not stored; without `on_done`, `flush()` raises that.
        While `in_flight_max` transactions are in flight, the call waits.
        Errors: MessageError, SendError, UnknownTopicError, LakeError, NoListenerError, ClosedError:
        the transaction was not begun.
        """
        require_message(message)
        if on_done is not None and not callable(on_done):
            raise ValueError(f"on_done {on_done!r}: a function of the result")
        self._executor(None)
        self._pipeline.acquire(self._timeout_s)

        now_ms = time.time_ns() // 1_000_000
        half = PipelinedHalf(message, self._ids.next(now_ms), arg, on_done, self._pipeline)
        self._running.add(half.transaction_id)

        try:
            self._halves.send(half, now_ms, half.take_report)
        except BaseException:
            self._running.discard(half.transaction_id)
            self._pipeline.release()
            raise

        return half.transaction_id

    def flush(self, timeout_s: float | None = None) -> int:
        """Waits until every pipelined transaction has ended. Output: how many have not.

        A warning in the log `txlake.pipeline` says how many local transactions and callbacks have
        failed since the last call; the job asks the group about those transactions.
        Errors: SendError when halves without `on_done` were not stored; ClosedError after a fork;
        ValueError for a timeout that is no number of seconds.
        """
        if timeout_s is None:
            timeout_s = self._timeout_s
        require_seconds("timeout_s", timeout_s)

        self._guard.check()
        return self._pipeline.drain(min(timeout_s, INT_MAX))  # a lock cannot wait without end

    def close(self) -> None:
        """Finishes what is in flight, and stops; a second call does nothing.

        It waits for transactions of other threads, too. The job asks the group about those that
        have not ended within `close_timeout_ms`.
        """
        if self._is_closed:
            return

        self._is_closed = True
        self._finalizer.detach()

        if self._guard.is_here:  # a child has none of the threads, and its parent closes
            self._parts.close()

    def _executor(self, execute: Execute | None) -> Execute:
        if self._is_closed:
            raise ClosedError("the producer is closed")
        self._guard.check()
        return executor(self._listener, execute)


class _Calls:
    """The calls that send a transaction and wait until it has ended, by their threads."""

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._changed = threading.Condition()  # a signal's handler can come within: it is an RLock

    @contextmanager
    def note(self) -> Iterator[None]:
        """Notes a call of this thread while the block runs."""
        thread = threading.get_ident()
        with self._changed:
            self._threads.append(thread)

        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(thread)
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Waits until those of other threads have ended; one of this thread waits for this."""
        own = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: all(each == own for each in self._threads), timeout_s)


@dataclass(frozen=True)
class _Parts:
    """The parts that a producer closes. They do not refer to the producer: it can be dropped."""

    calls: _Calls
    pipeline: Pipeline
    checks: CheckAnswerer | None
    operations: OperationBatcher
    sender: KafkaSender
    timeout_ms: int

    def close(self) -> None:
        """Finishes what is in flight, and stops all threads."""
        deadline = time.monotonic() + self.timeout_ms / 1000

        self.calls.wait(deadline - time.monotonic())
        try:
            self.pipeline.drain(deadline - time.monotonic())
        finally:
            if self.checks is not None:
                self.checks.close(deadline)
            self.operations.close()
            self.sender.close(deadline - time.monotonic())
            self.pipeline.close()


@dataclass(frozen=True)
class _LocalTransactions:
    """The runner of pipelined local transactions. It does not refer to the producer."""

    listener: TransactionListener | None
    operations: OperationBatcher
    running: set[str]

    def run(self, half: PipelinedHalf) -> None:
        """Runs the local transaction of a half that is stored, and sends its end."""
        assert self.listener is not None  # send_pipelined has checked that
        state, remark = call_safely(
            self.listener.execute_local_transaction, half, half.arg, caught=BaseException
        )
        half.local_state = state
        half.remark = remark
        if remark:
            half.pipeline.note_failure()

        # Before Python 3.12 `value` is a function call; `_value_` is an attribute.
        self.operations.add(
            half.queue_id,
            (half.queue_offset,),
            half.transaction_id,
            state._value_,
            half.take_end_report,
            [(protocol.REMARK, remark)] if remark else (),
        )
        self.running.discard(half.transaction_id)


def executor(listener: TransactionListener | None, execute: Execute | None) -> Execute:
    """Returns the function that runs a local transaction: `execute`, else the listener's method.

    Errors: NoListenerError without both; TypeError for an `execute` that cannot be called.
    """
    if execute is not None:
        if not callable(execute):
            raise TypeError(f"execute: expected a function, not {type(execute).__name__}")
        return execute

    if listener is None:
        raise NoListenerError("a transaction needs a listener, or `execute`")
    return listener.execute_local_transaction
