"""Half messages as records: their headers and their half queue."""

from __future__ import annotations

import itertools
import time
import zlib

from txlake import protocol
from txlake._kafka import KafkaSender
from txlake.errors import MessageError
from txlake.message import Message, asked_headers, asks
from txlake.options import ProducerOptions
from txlake.protocol import Headers

_WIRE = (protocol.TXV, protocol.WIRE_VERSION.encode())

# So many halves in a row go to one half queue: their ends fit into one operation.
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
        members = [(protocol.TRAN_SIZE, b"%d" % place[0]), (protocol.TRAN_SEQ, b"%d" % place[1])]
    return [
        *group,
        (protocol.UNIQ_KEY, transaction_id.encode()),
        (protocol.REAL_TOPIC, message.topic.encode()),
        *(_asked_headers(message, now_ms) if asks(message) else ()),
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
    headers = message_headers(message, group, transaction_id, now_ms, place)
    body_bytes, bytes_max = len(message.body or b""), options.message_bytes_max
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
    """Raises MessageError for a time beyond the job's limit: the job would deliver earlier."""
    said, ahead_ms = f"deliver_after_ms {message.deliver_after_ms}", message.deliver_after_ms
    if ahead_ms is None:
        ahead_ms = (message.deliver_at or 0) - now_ms
        said = f"deliver_at {message.deliver_at} is {ahead_ms} ms ahead"
    if ahead_ms > ahead_max_ms:
        raise MessageError(f"{said}: deliver_at_max_ms = {ahead_max_ms} at most")


def _asked_headers(message: Message, now_ms: int) -> Headers:
    headers = [(name, value.encode()) for name, value in asked_headers(message).items()]
    if message.deliver_after_ms is not None:
        headers.append((protocol.DELIVER_AT, b"%d" % (now_ms + message.deliver_after_ms)))
    if message.check_immunity_time_s is not None:
        headers.append((protocol.CHECK_IMMUNITY, b"%d" % message.check_immunity_time_s))
    return headers


def asked_half_queue(topic: str, queue_id: int, half_queues: int) -> int:
    """Returns the half queue of the messages that ask for a real queue: always the same.

    Source: PROTOCOL.md "Delivery": order holds within one half queue.
    """
    return zlib.crc32(f"{topic}/{queue_id}".encode()) % half_queues


class HalfQueues:
    """The choice of a half queue for each transaction.

    Errors: UnknownTopicError, SendError, as `KafkaSender.partition_count`.
    """

    def __init__(self, sender: KafkaSender, half_topic: str, op_topic: str) -> None:
        self._sender = sender
        self._half_topic = half_topic
        self._op_topic = op_topic
        self._sends = itertools.count()
        self._known = (0, 0.0)  # the number of half queues, and until when it holds (monotonic s)

    def choose(self, message: Message) -> int:
        """Returns a message's half queue: one for each real queue, and the others in turn."""
        half_queues, known_until = self._known
        if time.monotonic() >= known_until:
            half_queues = self._count()
        if message.queue_id is not None:
            return asked_half_queue(message.topic, message.queue_id, half_queues)
        return next(self._sends) // _STICKY_RUN % half_queues

    def _count(self) -> int:
        # A half queue without an op queue of its number could never be ended.
        half_queues = min(
            self._sender.partition_count(self._half_topic),
            self._sender.partition_count(self._op_topic),
        )
        self._known = (half_queues, time.monotonic() + _KNOWN_FOR_S)
        return half_queues
