"""The ends of transactions, collected into operation records.

Ends of one half queue go to the op queue of the same number, in the order in which they were
added: a record of one decision is sent before one of another decision begins.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message

from txlake import protocol
from txlake._kafka import KafkaSender
from txlake.errors import TxlakeError
from txlake.signing import SigningKey, sign_operation

log = logging.getLogger("txlake.operations")

# Called on the sender's thread with whether Kafka has the operation.
OnSent = Callable[[bool], None]


@dataclass(slots=True)
class _Operation:
    """One operation record that still takes ends."""

    decision: str
    due_at: float
    half_offsets: list[int] = field(default_factory=list)
    transaction_ids: list[str] = field(default_factory=list)
    on_sent: list[OnSent] = field(default_factory=list)

    def report(
        self, error: KafkaError | TxlakeError | None, _record: Message | None, verb: str = "stored"
    ) -> None:
        """Passes Kafka's delivery report on to all callbacks of this record.

        Input: `verb`: what was not done if there is an error.
        """
        if error is not None:
            with suppress(Exception):  # a handler of the log can be the application's
                log.warning(
                    "an operation for %d halves was not %s, a check will end them: %s",
                    len(self.half_offsets),
                    verb,
                    error,
                )

        for on_sent in self.on_sent:
            try:
                on_sent(error is None)
            except BaseException:  # the other ends of the record get their report
                with suppress(Exception):  # as above
                    log.exception("a callback failed")


class OperationBatcher:
    """A writer of operations: few records, each for up to `ends_max` halves, signed with a key."""

    def __init__(
        self,
        sender: KafkaSender,
        op_topic: str,
        producer_group: str,
        linger_ms: int,
        ends_max: int,
        key: SigningKey | None = None,
    ) -> None:
        self._sender = sender
        self._op_topic = op_topic
        self._group = producer_group
        self._linger_s = linger_ms / 1000
        self._ends_max = ends_max
        self._key = key

        self._open: dict[int, _Operation] = {}
        # A signal's handler can close the producer within: an RLock, and no Event, whose own lock
        # would wait for itself.
        self._lock = threading.RLock()
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_awake = False  # the thread looks for records that are due
        self._is_closed = False

        self._thread = threading.Thread(target=self._run, name="txlake-operations", daemon=True)
        self._thread.start()

    def add(
        self,
        queue_id: int,
        half_offsets: Sequence[int],
        transaction_id: str,
        decision: str,
        on_sent: OnSent | None = None,
        extra: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Ends the halves of one transaction, all in one record.

        `extra` headers (REMARK, FROM_CHECK, CHECK_ID) are about one transaction, so a record that
        has them ends this transaction alone.
        """
        with self._lock:
            # Out of `_open` while it changes: what closes within sends whole records alone.
            operation = self._open.pop(queue_id, None)
            try:
                if operation is not None and (
                    extra
                    or operation.decision != decision
                    or len(operation.half_offsets) + len(half_offsets) > self._ends_max
                ):
                    before, operation = operation, None
                    self._send(queue_id, before, ())

                if operation is None:
                    operation = _Operation(decision, time.monotonic() + self._linger_s)

                operation.half_offsets += half_offsets
                operation.transaction_ids += [transaction_id] * len(half_offsets)
                if on_sent is not None:
                    operation.on_sent.append(on_sent)
            except BaseException:  # Ctrl-C, say: other transactions' ends are in the record
                if operation is not None and operation.half_offsets and not extra:
                    self._open.setdefault(queue_id, operation)
                raise

            is_whole = bool(extra) or len(operation.half_offsets) >= self._ends_max
            if is_whole or self._open.setdefault(queue_id, operation) is not operation:
                self._send(queue_id, operation, extra)
            elif self._is_closed:  # nobody would send it later
                self._send_open(queue_id)
            elif not self._is_awake:
                self._wake_ups.put(None)
                self._is_awake = True

    def flush(self) -> None:
        """Sends every record that still takes ends."""
        with self._lock:
            self._send_due(float("inf"))

    def close(self) -> None:
        """Sends the collected ends, and stops."""
        self._is_closed = True
        self.flush()
        self._wake_ups.put(None)
        self._thread.join(timeout=1.0)

    def _send_open(self, queue_id: int) -> None:
        """Sends a queue's record that still takes ends, if there still is one."""
        operation = self._open.pop(queue_id, None)
        if operation is not None:
            self._send(queue_id, operation, ())

    def _send(self, queue_id: int, operation: _Operation, extra: Sequence[tuple[str, str]]) -> None:
        headers = protocol.operation_headers(
            self._group, operation.decision, operation.transaction_ids, extra
        )
        headers.append((protocol.TXV, protocol.WIRE_VERSION.encode()))
        body = protocol.operation_body(operation.half_offsets)

        if self._key is not None:
            signature = sign_operation(self._key, queue_id, body, dict(headers))
            headers.append((protocol.SIG, signature.encode()))

        try:
            self._sender.send(self._op_topic, queue_id, body, headers, operation.report)
        except TxlakeError as error:
            operation.report(error, None, "sent")

    def _send_due(self, now: float) -> float:
        """Sends the records that are due. Output: when the next one is due."""
        for queue_id, operation in list(self._open.items()):
            if operation.due_at <= now:
                self._send_open(queue_id)
        return min((operation.due_at for operation in self._open.values()), default=float("inf"))

    def _run(self) -> None:
        while not self._is_closed:
            self._wake_ups.get()
            is_awake = True

            while is_awake and not self._is_closed:
                next_at = float("inf")
                try:
                    with self._lock:
                        next_at = self._send_due(time.monotonic())
                        is_awake = self._is_awake = bool(self._open)
                except BaseException:  # the thread goes on: ends of other queues wait for it
                    log.exception("operations were not sent, checks will end their halves")

                time.sleep(min(max(next_at - time.monotonic(), 0.0), self._linger_s))
