"""Hostile records of every kind: what a job may find in its topics, whoever wrote it."""

from __future__ import annotations

import random
from typing import Final

from storage.wire.record_kinds import ADMIN, HALF, KINDS, OP, SCHEDULE
from txlake import protocol as p

Header = tuple[str, str | bytes | None]
Hostile = tuple[str, int, bytes | None, list[Header]]  # kind, partition, body, headers
BODY_BYTES_MAX: Final = 65_536
QUEUES: Final = 4
_MANY_HEADERS = 100_000
_NUMBERS = tuple(
    str(number).encode()
    for bits in (7, 8, 15, 16, 31, 32, 63, 64, 128)
    for number in (2**bits - 1, 2**bits, -(2**bits))
)
_VALUES: Final[tuple[bytes | None, ...]] = (
    None,
    b"",
    b"\0",
    b"a\0b",
    b"\xff\xfe",
    b" ",
    b"\n",
    b"..",
    b".",
    b"...",
    b"../../../etc/passwd",
    b"/etc/passwd",
    b"a/b",
    b"C:\\x",
    b"half",
    b"_delta_log",
    b"epoch=1",
    b"x" * 127,
    b"x" * 128,
    b"x" * 10_000,
    b"'; DROP TABLE half; --",
    b'" OR 1=1',
    b"\x1b[2J\x1b]0;x\x07",
    b"${jndi:ldap:x}",
    b"<script>alert(1)</script>",
    b"{{7*7}}",
    b"%s%n",
    "\u202egnp.exe".encode(),
    "\u0663".encode(),
    b"NaN",
    b"1e9",
    b"+1",
    b"007",
    b"0",
    b"1",
    b"2",
    b"8",
    b"12",
    b"true",
    b"shop",
    b"tx-1",
    b"orders",
    b"9" * 400,
    p.OP_TOPIC.encode(),
    b"TRANS_CHECK_x",
    b"PING",
    b"RESUME",
    *_NUMBERS,
)
_NAMES: Final = (
    *p.HALF_HEADERS,
    *p.OP_HEADERS,
    *p.ADMIN_HEADERS,
    *p.CHECK_HEADERS,
    "user",
    "../x",
    "\u202e",
    "n" * 1_000,
)
_READABLE: Final[dict[str, tuple[Header, ...]]] = {
    HALF: ((p.PGROUP, b"shop"), (p.UNIQ_KEY, b"tx-1"), (p.REAL_TOPIC, b"orders")),
    OP: ((p.PGROUP, b"shop"), (p.TRAN_TYPE, b"8")),
    SCHEDULE: ((p.REAL_TOPIC, b"orders"),),
    ADMIN: ((p.COMMAND, b"CANCEL"), (p.TARGET, b"half:0-1"), (p.ACTOR, b"ada")),
}


def hostile(rng: random.Random, number: int) -> Hostile:
    """Returns a record: a readable one of its kind, changed here and there."""
    kind = rng.choices(KINDS, (6, 4, 3, 1))[0]
    headers = [*_READABLE[kind]]

    for _ in range(rng.randrange(5)):
        change = rng.randrange(4)
        at = rng.randrange(len(headers) + 1)

        if change == 0 and headers:
            del headers[at % len(headers)]
        elif change == 1 and headers:
            headers.insert(at, rng.choice(headers))
        elif change == 2 and headers:
            name, _ = headers[at % len(headers)]
            headers[at % len(headers)] = name, rng.choice(_VALUES)
        else:
            headers.insert(at, (rng.choice(_NAMES), rng.choice(_VALUES)))

    body = rng.choice(_VALUES) if kind != OP else _offsets(rng)
    if number % 501 == 17:  # whole records at the limit, and one byte above
        size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
        body = b"b" * (BODY_BYTES_MAX - size + number % 2)

    if number % 50_000 == 33:
        headers += [("h", b"")] * _MANY_HEADERS

    partition = 0 if kind in (ADMIN, SCHEDULE) else rng.randrange(QUEUES)
    return kind, partition, body, headers


def _offsets(rng: random.Random) -> bytes | None:
    if rng.random() < 0.3:
        return rng.choice(_VALUES)
    return b",".join(str(rng.randrange(10_000)).encode() for _ in range(rng.randrange(1, 6)))
