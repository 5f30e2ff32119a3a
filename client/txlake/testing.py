"""A producer without Kafka, for the tests of applications."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from txlake._half import checked_headers, group_headers
from txlake._identifiers import TransactionIds
from txlake.errors import ClosedError, NoListenerError, SendError
from txlake.listener import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    TransactionListener,
    call_safely,
)
from txlake.message import Message, require_message, require_set
from txlake.options import ProducerOptions, checked_options
from txlake.ordering import QueueCounts, checked_counts, with_queue
from txlake.producer import Execute, OnDone, executor
from txlake.results import TransactionSendResult

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
_GROUP = group_headers("fake")


class FakeTransactionProducer:
    """A producer that runs the listener as the real one does, and remembers instead of sending.

    `fail_next_send` makes the next half fail: the local transaction does not run.
    `lose_next_operation` drops the next end, as a crash would: then `check()` asks the listener.
    """

    def __init__(
        self,
        listener: TransactionListener | None = None,
        *,
        options: ProducerOptions | None = None,
        queue_counts: QueueCounts | None = None,
    ) -> None:
        self._listener = listener
        self._queue_counts = checked_counts(queue_counts)
        self._options = checked_options(options)
        self._ids = TransactionIds()
        self._is_closed = False
        self._next_offset = 0
        self._checks: dict[str, int] = {}

        self.fail_next_send = False
        self.lose_next_operation = False
        self.halves: list[HalfMessage] = []
        self.results: list[TransactionSendResult] = []
        self.states: dict[str, LocalTransactionState] = {}

    def __enter__(self) -> FakeTransactionProducer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def committed(self) -> list[Message]:
        """Returns the messages that would be delivered, in the order of sending."""
        return self._messages(COMMIT)

    @property
    def rolled_back(self) -> list[Message]:
        """Returns the messages that will never be delivered."""
        return self._messages(ROLLBACK)

    @property
    def pending(self) -> list[Message]:
        """Returns the messages whose transaction has no end yet."""
        return self._messages(LocalTransactionState.UNKNOWN)

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, execute: Execute | None = None
    ) -> TransactionSendResult:
        """Does as the real producer does, without Kafka."""
        return self.send_messages_in_transaction((message,), arg, execute=execute)

    def send_messages_in_transaction(
        self, messages: Sequence[Message], arg: Any = None, *, execute: Execute | None = None
    ) -> TransactionSendResult:
        """Does as the real producer does, without Kafka."""
        if self._is_closed:
            raise ClosedError("the producer is closed")
        require_set(messages, self._options.messages_max)
        run = executor(self._listener, execute)

        now_ms = time.time_ns() // 1_000_000
        half = HalfMessage(messages[0], tuple(messages), self._ids.next(now_ms))
        for seq, message in enumerate(messages):
            place = None if len(messages) == 1 else (len(messages), seq)
            message = with_queue(message, self._queue_counts)
            checked_headers(message, _GROUP, half.transaction_id, now_ms, self._options, place)

        if self.fail_next_send:
            self.fail_next_send = False
            raise SendError("the half was not stored, as the fake was set up", half.transaction_id)

        half.queue_id = 0
        half.queue_offset = self._next_offset
        self._next_offset += len(messages)
        self.halves.append(half)
        self.states[half.transaction_id] = LocalTransactionState.UNKNOWN

        state, remark = call_safely(run, half, arg)

        is_sent = not self.lose_next_operation
        self.lose_next_operation = False
        if is_sent:
            self.states[half.transaction_id] = state

        result = TransactionSendResult(
            half.transaction_id, 0, half.queue_offset, state, is_sent, remark, _offsets(half)
        )
        self.results.append(result)
        return result

    def send_pipelined(
        self, message: Message, arg: Any = None, on_done: OnDone | None = None
    ) -> str:
        """Does as the real producer does, at once and on this thread."""
        require_message(message)
        try:
            result: TransactionSendResult | SendError = self.send_message_in_transaction(
                message, arg
            )
        except SendError as error:
            if on_done is None:
                raise
            result = error

        if on_done is not None:
            on_done(result)
        return result.transaction_id

    def flush(self, timeout_s: float | None = None) -> int:
        """Returns 0: every transaction has ended."""
        return 0

    def check(self, transaction_id: str | None = None) -> list[LocalTransactionState]:
        """Asks the listener about one transaction, or about all without an end.

        Output: its answers. As in RocketMQ, a COMMIT or ROLLBACK holds for ever: a later answer
        changes nothing.
        """
        if self._listener is None:
            raise NoListenerError("this producer has no listener to ask")

        answers = []
        for half in self.halves:
            is_open = self.states[half.transaction_id] is LocalTransactionState.UNKNOWN
            is_named = half.transaction_id == transaction_id
            if not (is_open if transaction_id is None else is_named):
                continue

            check_times = self._checks.get(half.transaction_id, 0) + 1
            self._checks[half.transaction_id] = check_times
            answer, _ = call_safely(
                self._listener.check_local_transaction, checked_message(half, check_times)
            )

            answers.append(answer)
            if is_open:
                self.states[half.transaction_id] = answer

        return answers

    def close(self) -> None:
        """Closes the producer: it refuses messages from now on."""
        self._is_closed = True

    def _messages(self, state: LocalTransactionState) -> list[Message]:
        return [
            message
            for half in self.halves
            if self.states[half.transaction_id] is state
            for message in half.messages
        ]


def checked_message(half: HalfMessage, check_times: int = 1) -> CheckedMessage:
    """Returns the question that the job would ask about a half."""
    return CheckedMessage(
        transaction_id=half.transaction_id,
        topic=half.topic,
        body=half.body,
        queue_id=half.queue_id,
        queue_offsets=_offsets(half),
        check_times=check_times,
        check_id=f"{half.queue_id}-{half.queue_offset}-0-{check_times}",
        keys=half.keys,
        tags=half.tags,
        properties=half.properties,
        is_body_omitted=False,
    )


def _offsets(half: HalfMessage) -> tuple[int, ...]:
    return tuple(range(half.queue_offset, half.queue_offset + len(half.messages)))
