"""Half messages as records: their headers and their half queue."""

from __future__ import annotations

import zlib

from txlake import protocol
from txlake.message import Message
from txlake.protocol import Headers

_WIRE = (protocol.TXV, protocol.WIRE_VERSION.encode())


def group_headers(producer_group: str) -> Headers:
    """Write the headers that every half of a group begins with."""
    return [(protocol.TRAN_MSG, b"true"), (protocol.PGROUP, producer_group.encode())]


def message_headers(
    message: Message,
    group: Headers,
    transaction_id: str,
    now_ms: int,
    place: tuple[int, int] | None = None,
) -> Headers:
    """Write a half's headers in the order of `protocol.HALF_HEADERS`, then the user's.

    `place` is (TRAN_SIZE, TRAN_SEQ) of one of several messages.
    Units: `now_ms` epoch ms, written as BORN_TIMESTAMP.
    """
    deliver: Headers = []
    if message.deliver_after_ms is not None:
        deliver = [(protocol.DELIVER_AT, b"%d" % (now_ms + message.deliver_after_ms))]
    members: Headers = []
    if place is not None:
        members = [(protocol.TRAN_SIZE, b"%d" % place[0]), (protocol.TRAN_SEQ, b"%d" % place[1])]
    return [
        *group,
        (protocol.UNIQ_KEY, transaction_id.encode()),
        *message.fixed_headers,
        *deliver,
        *message.immunity_headers,
        (protocol.BORN_TIMESTAMP, b"%d" % now_ms),
        *members,
        _WIRE,
        *message.user_headers,
    ]


def asked_half_queue(topic: str, queue_id: int, half_queues: int) -> int:
    """Choose the half queue of messages that ask for one real queue: always the same.

    Source: DESIGN.md, wire form: order holds within one half queue.
    """
    return zlib.crc32(f"{topic}/{queue_id}".encode()) % half_queues
