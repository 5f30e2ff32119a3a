"""Kafka records made by hand, as they are read; and what landing them gives."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage import schemas
from storage.lake.lake import Lake
from storage.tasks.land import PAYLOAD_COLUMNS, Landing
from storage.wire.decode import KAFKA, RECORDS
from storage.wire.record_kinds import ADMIN, HALF, KINDS, OP, SCHEDULE, WireLimits
from tests.support.local_landing import landed_here
from txlake import protocol as p

Header = tuple[str, bytes | None]
Record = tuple[str, bytes | None, list[Header] | None]  # topic, value, headers
STORED_AT = dt.datetime(2026, 1, 2, 3, 4, 5)
LIMITS = WireLimits(
    topics={HALF: "halves", OP: "ops", SCHEDULE: "later", ADMIN: "commands"},
    check_topic_prefix="TRANS_CHECK_",
    message_bytes_max=1_000,
    messages_max=10,
    operation_namings_max=20,
)
HALF_HEADERS: dict[str, bytes] = {
    p.TRAN_MSG: b"true",
    p.PGROUP: b"shop",
    p.UNIQ_KEY: b"tx-1",
    p.REAL_TOPIC: b"orders",
}
OP_HEADERS: dict[str, bytes] = {p.TAGS: b"d", p.PGROUP: b"shop", p.TRAN_TYPE: b"8"}


def as_read(records: Sequence[Record]) -> pa.Table:
    """Return records as they are read from Kafka. Output: KAFKA."""
    rows = [
        {
            "key": b"key",
            "value": value,
            "topic": topic,
            "partition": 3,
            "offset": offset,
            "timestamp": STORED_AT.replace(tzinfo=dt.timezone.utc),
            "headers": _pairs(headers),
        }
        for offset, (topic, value, headers) in enumerate(records)
    ]

    return pa.Table.from_pylist(rows, schema=KAFKA)


def _pairs(headers: list[Header] | None) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in headers] if headers else None


def landed(records: pa.Table, path: Path) -> list[dict[str, Any]]:
    """Land records and put together again what came back and what was written."""
    lake = Lake(str(path))
    for kind in (HALF, SCHEDULE):
        lake.create_table(kind)

    batch = landed_here(records.to_batches(), Landing(lake.location, 1, LIMITS), 1)
    rows = []

    for kind in KINDS:
        lake.add_files(kind, batch.files.get(kind, []), 1)
        heavy = lake.read(kind).sort_by("queue_offset") if kind in (HALF, SCHEDULE) else None
        for place, kept in enumerate(batch.rows(kind).to_pylist()):
            assert not {name for name in kept if name not in schemas.TABLES[kind].names}
            row = dict.fromkeys(RECORDS.names) | {"kind": kind} | kept
            rows.append(row)
            if heavy is not None:
                assert not any(row[name] for name in PAYLOAD_COLUMNS), "no body comes to the driver"
                (written,) = heavy.slice(place, 1).to_pylist()
                assert written.pop("epoch") == 1
                named = {name: row[name] for name in written if name not in PAYLOAD_COLUMNS}
                assert {name: written[name] for name in named} == named
                row |= written
    return sorted(rows, key=lambda row: int(row["queue_offset"]))


def half(changes: dict[str, bytes | None] | None = None) -> list[Header]:
    """Return a half's headers; None takes one away."""
    headers = {**HALF_HEADERS, **(changes or {})}
    return [(name, value) for name, value in headers.items() if value is not None]


def operation(changes: dict[str, bytes | None] | None = None) -> list[Header]:
    headers = {**OP_HEADERS, **(changes or {})}
    return [(name, value) for name, value in headers.items() if value is not None]


def raw_headers(row: dict[str, Any]) -> list[Header]:
    return [(header["key"], header["value"]) for header in row["raw_headers"]]
