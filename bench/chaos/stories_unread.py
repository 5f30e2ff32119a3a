"""A story of records that cannot be read: each is a row with the reason that is promised here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.chaos.names import RAW_GROUP, RAW_TOPIC
from bench.chaos.raw_journal import UNREADABLE
from bench.chaos.raw_kafka import Header
from bench.chaos.raw_world import Story, World
from bench.chaos.settings import MESSAGE_BYTES_MAX
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

Changes = Mapping[str, bytes | None]  # of a readable record's headers; None: leave it out
_HALF: Mapping[str, bytes] = {
    p.PGROUP: RAW_GROUP.encode(),
    p.UNIQ_KEY: b"unreadable",
    p.REAL_TOPIC: RAW_TOPIC.encode(),
}
_OP: Mapping[str, bytes] = {p.PGROUP: RAW_GROUP.encode(), p.TRAN_TYPE: b"8"}
_ADMIN: Mapping[str, bytes] = {p.COMMAND: p.PING.encode()}
_READABLE = {HALF: _HALF, SCHEDULE: {p.REAL_TOPIC: RAW_TOPIC.encode()}, OP: _OP, ADMIN: _ADMIN}
_BODY = {HALF: b"body", SCHEDULE: b"body", OP: b"0,", ADMIN: None}
_TOO_MUCH = bytes(MESSAGE_BYTES_MAX)

# (kind, reason, changed headers, body or the readable one's)
CASES: Sequence[tuple[str, str, Changes, bytes | None]] = (
    (HALF, "newer_version", {p.TXV: b"2"}, b""),
    (HALF, "bad_producer_group", {p.PGROUP: None}, b""),
    (HALF, "bad_producer_group", {p.PGROUP: b"a b"}, b""),
    (HALF, "bad_transaction_id", {p.UNIQ_KEY: b"\xff"}, b""),
    (HALF, "bad_real_topic", {p.REAL_TOPIC: b".."}, b""),
    (HALF, "bad_real_topic", {p.REAL_TOPIC: p.OP_TOPIC.encode()}, b""),
    (HALF, "bad_set", {p.TRAN_SIZE: b"2"}, b""),
    (HALF, "bad_set", {p.TRAN_SIZE: b"2", p.TRAN_SEQ: b"2"}, b""),
    (HALF, "too_large", {}, _TOO_MUCH),
    (OP, "newer_version", {p.TXV: b"1.0"}, b""),
    (OP, "bad_tran_type", {p.TRAN_TYPE: b"08"}, b""),
    (OP, "bad_producer_group", {p.PGROUP: b""}, b""),
    (OP, "bad_offsets", {}, b"1,,2"),
    (OP, "bad_offsets", {}, b"-1"),
    (OP, "bad_transaction_id", {p.UNIQ_KEY: b"one,two"}, b""),
    (SCHEDULE, "newer_version", {p.TXV: b""}, b""),
    (SCHEDULE, "bad_real_topic", {p.REAL_TOPIC: None}, b""),
    (SCHEDULE, "bad_producer_group", {p.PGROUP: b"\xff"}, b""),
    (SCHEDULE, "bad_transaction_id", {p.UNIQ_KEY: b"a b"}, b""),
    (SCHEDULE, "too_large", {}, _TOO_MUCH),
    (ADMIN, "newer_version", {p.TXV: b"9"}, b""),
    (ADMIN, "unknown_command", {p.COMMAND: b"resume"}, b""),
    (ADMIN, "unknown_command", {p.COMMAND: None}, b""),
)


def unreadable(world: World) -> Story:
    """A record of each kind that cannot be read; an operation that names such a half."""
    for wanted in world.rng.sample(list(_READABLE), len(_READABLE)):
        kind, reason, changes, body = world.rng.choice([c for c in CASES if c[0] == wanted])
        values = {**_READABLE[kind], **changes}

        headers: list[Header] = [
            (name, value) for name, value in values.items() if value is not None
        ]
        world.rng.shuffle(headers)

        queue_id = world.transaction().queue_id if kind in (HALF, OP) else 0
        about: dict[str, Any] = {"transaction_id": "unreadable", "decision": None, "ends": []}

        record = world.kafka.send(kind, world.story, queue_id, body or _BODY[kind], headers, about)
        world.promise(UNREADABLE, [record], reason=reason)

        if kind == HALF:
            yield world.pause(0.5)
            world.end(p.COMMIT, [record], with_ids=False)
        yield world.pause(0.1)
