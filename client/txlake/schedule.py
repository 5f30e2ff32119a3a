"""A producer of messages without a transaction, delayed or not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from txlake import protocol
from txlake._counted import counted
from txlake._half import checked_headers
from txlake._identifiers import TransactionIds
from txlake._kafka import KafkaSender, client_settings, failure_text
from txlake._process import ProcessGuard
from txlake.errors import SendError
from txlake.message import Message, require_messages
from txlake.options import ProducerOptions, checked_options
from txlake.ordering import QueueCounts, checked_counts, with_queue
from txlake.results import SendResult


class Producer:
    """A producer of messages without a transaction; the job delivers each when it is due.

    `queue_counts`: as of a TransactionProducer.
    Errors: ValueError for a group's name or a setting that is not allowed.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        producer_group: str | None = None,
        *,
        options: ProducerOptions | None = None,
        client: Mapping[str, Any] | None = None,
        queue_counts: QueueCounts | None = None,
    ) -> None:
        self._queue_counts = checked_counts(queue_counts)
        self._group: protocol.Headers = []
        if producer_group is not None:
            if not protocol.matches(protocol.GROUP_PATTERN, producer_group):
                raise ValueError(f"producer_group {producer_group!r}: {protocol.GROUP_PATTERN}")
            self._group = [(protocol.PGROUP, producer_group.encode())]

        self._options = options = checked_options(options)
        self._level_count = len(protocol.delay_levels_ms(options.delay_levels))
        self._ids = TransactionIds()

        self._guard = ProcessGuard("producer")
        self._sender = KafkaSender(client_settings(bootstrap_servers, client), options)
        timeout_s = options.close_timeout_ms / 1000
        self._finalizer = self._guard.close_when_dropped(
            self, partial(self._sender.close, timeout_s)
        )

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def send(self, message: Message) -> SendResult:
        """Sends one message, and waits until Kafka has it.

        Errors: SendError, ClosedError; MessageError for a message beyond the options' limits.
        """
        return self.send_all([message])[0]

    def send_all(self, messages: Sequence[Message]) -> list[SendResult]:
        """Sends messages together, and waits until Kafka has all of them.

        Errors: as `send`; UnknownTopicError, LakeError as of a TransactionProducer; MessageError
        for any of them, before one is sent; SendError when some message was not stored, though
        others can be.
        """
        require_messages(messages)
        self._guard.check()
        messages = [with_queue(message, self._queue_counts) for message in messages]

        now_ms = time.time_ns() // 1_000_000
        ids = [self._ids.next(now_ms) for _ in messages]
        queues = [self._queue(message) for message in messages]
        records = [
            (queue, message.body, checked_headers(message, self._group, id_, now_ms, self._options))
            for message, id_, queue in zip(messages, ids, queues, strict=True)
        ]

        reports = self._sender.send_all(self._options.schedule_topic, records)
        if reports.failure is not None:
            raise SendError(
                failure_text(
                    f"{counted(len(messages), 'message')}, not all",
                    reports.failure,
                    reports.is_open,
                    "the job delivers it",
                )
            )

        return [SendResult(*result) for result in zip(ids, queues, reports.stored(), strict=True)]

    def close(self) -> None:
        """Sends the buffered messages, and stops; a second call does nothing."""
        self._finalizer.detach()
        if self._guard.is_here:  # a child has no thread that sends, and its parent closes
            self._sender.close(self._options.close_timeout_ms / 1000)

    def _queue(self, message: Message) -> int:
        """Returns the partition: level - 1; without a level the one after the last level's."""
        if message.delay_level:
            return min(message.delay_level, self._level_count) - 1
        return self._level_count
