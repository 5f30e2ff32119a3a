"""A record that Kafka's clients do not write: its bytes go over a socket, in Kafka's own protocol.

librdkafka takes a header's name as text, and Java's client encodes it; programs in other languages
write what bytes they have.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from tests.support.wait import DEADLINE_S

_PRODUCE = 0
_PRODUCE_VERSION = 3
_NO_ERROR = 0
_CASTAGNOLI = 0x82F63B78


def write_raw_record(
    bootstrap_servers: str,
    topic: str,
    partition: int,
    value: bytes,
    headers: Sequence[tuple[bytes, bytes]],
) -> None:
    """Write one record into a partition, whose leader is the one broker."""
    host, _, port = bootstrap_servers.partition(":")
    batch = _record_batch(value, headers)
    body = b"".join(
        [
            struct.pack(">hhi", -1, -1, 240_000),  # no transaction, acks of all, timeout in ms
            struct.pack(">i", 1),
            _text(topic),
            struct.pack(">ii", 1, partition),
            struct.pack(">i", len(batch)),
            batch,
        ]
    )
    request = struct.pack(">hhi", _PRODUCE, _PRODUCE_VERSION, 1) + _text("raw") + body

    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)

    at = 4 + 4 + 2 + len(topic.encode()) + 4 + 4  # up to the error of the partition
    (error,) = struct.unpack_from(">h", answer, at)
    assert error == _NO_ERROR, f"Kafka's error {error}"


def _record_batch(value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns a batch of one record. Source: Kafka's documentation, "Record Batch"."""
    record = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _varint(len(value)) + value
    record += _varint(len(headers))
    for name, text in headers:
        record += _varint(len(name)) + name + _varint(len(text)) + text
    record = _varint(len(record)) + record

    now_ms = time.time_ns() // 1_000_000
    checked = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    after_length = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def _varint(number: int) -> bytes:
    """Returns a number as Kafka's records have it: zigzag, seven bits a byte."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data
