"""Half messages as records: their headers, their half queue, and how they are sent."""

from __future__ import annotations

import functools
import itertools
import logging
import time
import zlib

from txlake import protocol
from txlake._kafka import HALF_IS_ASKED_ABOUT, DeliveryReport, KafkaSender, failure_text
from txlake._operations import OperationBatcher
from txlake.errors import MessageError, SendError
from txlake.listener import HalfMessage
from txlake.message import Message, has_options, option_headers
from txlake.options import ProducerOptions
from txlake.ordering import QueueCounts, with_queue
from txlake.protocol import Headers

log = logging.getLogger("txlake.message")

_WIRE = (protocol.TXV, protocol.WIRE_VERSION.encode())

# Halves in a row that go to one half queue: their ends fit into one operation.
_STICKY_RUN = 16
# The sender remembers the number for longer, but asking it reads the clock twice.
_KNOWN_FOR_S = 1.0


def group_headers(producer_group: str) -> Headers:
    """Returns the headers with which every half of a group begins."""
    return [(protocol.TRAN_MSG, b"true"), (protocol.PGROUP, producer_group.encode())]


def message_headers(
    message: Message,
    group: Headers,
    transaction_id: str,
    now_ms: int,
    place: tuple[int, int] | None = None,
) -> Headers:
    """Returns a half's headers in the order of `protocol.HALF_HEADERS`, then the user's.

    `place`: TRAN_SIZE and TRAN_SEQ; None for a half alone.
    Units: `now_ms` epoch ms, written as BORN_TIMESTAMP.
    """
    members: Headers = []
    if place is not None:
        size, seq = place
        members = [(protocol.TRAN_SIZE, b"%d" % size), (protocol.TRAN_SEQ, b"%d" % seq)]

    return [
        *group,
        (protocol.UNIQ_KEY, transaction_id.encode()),
        (protocol.REAL_TOPIC, message.topic.encode()),
        *(_option_headers(message) if has_options(message) else ()),
        (protocol.BORN_TIMESTAMP, b"%d" % now_ms),
        *members,
        _WIRE,
        *[(name, value.encode()) for name, value in message.properties.items()],
    ]


def checked_headers(
    message: Message,
    group: Headers,
    transaction_id: str,
    now_ms: int,
    options: ProducerOptions,
    place: tuple[int, int] | None = None,
) -> Headers:
    """Returns the headers of `message_headers` for a record that the job can read and obey.

    Errors: MessageError naming the limit and what exceeds it.
    """
    if message.deliver_at is not None or message.deliver_after_ms is not None:
        _check_deliver_at(message, now_ms, options.deliver_at_max_ms)
    if message.delay_level:
        _warn_of_level(message.delay_level, options.delay_levels)

    headers = message_headers(message, group, transaction_id, now_ms, place)

    body_bytes = len(message.body or b"")
    bytes_max = options.message_bytes_max
    # A message's headers have at most PROPERTIES_BYTES_MAX: they are counted only near the limit.
    if body_bytes + protocol.PROPERTIES_BYTES_MAX > bytes_max:
        size = protocol.record_bytes(message.body, headers)
        if size > bytes_max:
            raise MessageError(
                f"body of {body_bytes} bytes: {size} bytes with its headers, "
                f"message_bytes_max = {bytes_max} at most"
            )

    return headers


def _check_deliver_at(message: Message, now_ms: int, ahead_max_ms: int) -> None:
    """Raises MessageError for a time that the job would not obey: beyond its limit, or in seconds.

    An instant in seconds would be one of January 1970, and the message delivered at once.
    """
    if message.deliver_at is not None and now_ms < message.deliver_at * 2_000 < 4 * now_ms:
        raise MessageError(
            f"deliver_at {message.deliver_at} looks like seconds; in epoch ms it is "
            f"{message.deliver_at * 1_000}"
        )

    if message.deliver_after_ms is not None:
        ahead_ms = message.deliver_after_ms
        option = f"deliver_after_ms {ahead_ms}"
    else:
        ahead_ms = (message.deliver_at or 0) - now_ms
        option = f"deliver_at {message.deliver_at} is {ahead_ms} ms ahead"

    if ahead_ms > ahead_max_ms:
        raise MessageError(f"{option}: deliver_at_max_ms = {ahead_max_ms} at most")


@functools.lru_cache(maxsize=64)  # one warning a level
def _warn_of_level(level: int, levels: str) -> None:
    """Warns of a level beyond the last, which is probably a mistake."""
    count = len(protocol.delay_levels_ms(levels))
    if level > count:
        log.warning("delay_level %d: there are %d levels, and the last one counts", level, count)


def _option_headers(message: Message) -> Headers:
    """Returns the headers of the message's own options, REAL_QID to CHECK_IMMUNITY."""
    headers = [(name, value.encode()) for name, value in option_headers(message).items()]
    if message.check_immunity_time_s is not None:
        headers.append((protocol.CHECK_IMMUNITY, b"%d" % message.check_immunity_time_s))
    return headers


def half_queue_for(topic: str, queue_id: int, half_queues: int) -> int:
    """Returns the half queue of the messages that ask for a real queue: always the same.

    Source: docs/protocol/rules.md "Delivery": order holds within one half queue.
    """
    return zlib.crc32(f"{topic}/{queue_id}".encode()) % half_queues


class HalfSender:
    """The sender of one producer group's halves: alone, or several of one transaction together."""

    def __init__(
        self,
        sender: KafkaSender,
        operations: OperationBatcher,
        producer_group: str,
        options: ProducerOptions,
        queue_counts: QueueCounts | None = None,
    ) -> None:
        self._sender = sender
        self._operations = operations
        self._group_headers = group_headers(producer_group)
        self._options = options
        self._queue_counts = queue_counts
        self._sends = itertools.count()
        self._known = (0, 0.0)  # the number of half queues, and until when it holds (monotonic s)

    def send(self, half: HalfMessage, now_ms: int, report: DeliveryReport) -> None:
        """Sends a half alone, without waiting. Errors: as `store`."""
        options = self._options
        message = with_queue(half.message, self._queue_counts)

        headers = checked_headers(
            message, self._group_headers, half.transaction_id, now_ms, options
        )
        queue_id = self._choose_queue(message)
        self._sender.send(options.half_topic, queue_id, message.body, headers, report)

    def store(self, half: HalfMessage, now_ms: int) -> list[int]:
        """Sends all halves of a transaction and waits for Kafka. Output: their offsets.

        Errors: MessageError naming the limit and what exceeds it; UnknownTopicError; LakeError for
        queue counts that cannot be read; SendError when one was not stored; those that were are
        then rolled back.
        """
        messages = [with_queue(message, self._queue_counts) for message in half.messages]
        size = len(messages)
        all_headers = [
            checked_headers(
                message,
                self._group_headers,
                half.transaction_id,
                now_ms,
                self._options,
                None if size == 1 else (size, seq),
            )
            for seq, message in enumerate(messages)
        ]

        half.queue_id = self._choose_queue(messages[0])
        records = [
            (half.queue_id, message.body, headers)
            for message, headers in zip(messages, all_headers, strict=True)
        ]
        reports = self._sender.send_all(self._options.half_topic, records)

        stored = reports.stored()
        if reports.failure is not None:
            then = HALF_IS_ASKED_ABOUT
            if stored:
                then = "it is rolled back with the others"
                self._operations.add(half.queue_id, stored, half.transaction_id, protocol.ROLLBACK)

            raise SendError(
                failure_text("the half was not", reports.failure, reports.is_open, then),
                half.transaction_id,
            )

        half.queue_offset = stored[0]
        return stored

    def _choose_queue(self, message: Message) -> int:
        """Returns a message's half queue: one for each real queue, and the others in turn.

        Errors: UnknownTopicError, SendError, as `KafkaSender.partition_count`.
        """
        half_queues, known_until = self._known

        if time.monotonic() >= known_until:
            # A half queue without an op queue of its number could never be ended.
            half_queues = min(
                self._sender.partition_count(self._options.half_topic),
                self._sender.partition_count(self._options.op_topic),
            )
            self._known = (half_queues, time.monotonic() + _KNOWN_FOR_S)

        if message.queue_id is not None:
            return half_queue_for(message.topic, message.queue_id, half_queues)
        return next(self._sends) // _STICKY_RUN % half_queues
