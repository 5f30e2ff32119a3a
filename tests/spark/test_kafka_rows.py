"""Decoding: every record is one row; what cannot be read has its reason and is kept raw.

By itself, and as tasks land records.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.lake.lake import Lake
from storage.wire.decode import KAFKA, KEPT_BYTES, decode_rows
from tests.support.kafka_records import (
    LIMITS,
    STORED_AT,
    Header,
    Record,
    as_read,
    half,
    landed,
    operation,
    raw_headers,
)
from tests.support.plain_decoder import plain_row
from txlake import protocol as p

Decode = Callable[..., list[dict[str, Any]]]
# record (topic, value, headers) -> the reason, or None where it can be read
VERDICTS: list[tuple[str, bytes | None, list[Header] | None, str | None]] = [
    ("halves", b"body", half(), None),
    ("halves", None, half(), None),
    ("halves", b"body", half({p.TXV: b"1"}), None),
    ("halves", b"body", half({p.TXV: b"2"}), "newer_version"),
    ("halves", b"body", half({p.TXV: b"2", p.PGROUP: b"?"}), "newer_version"),
    ("halves", b"body", half({p.TXV: b""}), "newer_version"),
    ("halves", b"body", [*half(), (p.TXV, None)], "newer_version"),
    ("halves", b"body", None, "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: None}), "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: b""}), "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: b"a b"}), "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: b"a\n"}), "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: b"g" * 127}), None),
    ("halves", b"body", half({p.PGROUP: b"g" * 128}), "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: "gr\u00fcn".encode()}), "bad_producer_group"),
    ("halves", b"body", half({p.PGROUP: b"\xff"}), "bad_producer_group"),
    ("halves", b"body", [(p.PGROUP, b"g"), *half({p.PGROUP: None}), (p.PGROUP, b"?")], None),
    ("halves", b"body", half({p.UNIQ_KEY: None}), "bad_transaction_id"),
    ("halves", b"body", half({p.UNIQ_KEY: b"a.b"}), "bad_transaction_id"),
    ("halves", b"body", half({p.UNIQ_KEY: b"t" * 129}), "bad_transaction_id"),
    ("halves", b"body", half({p.REAL_TOPIC: None}), "bad_real_topic"),
    ("halves", b"body", half({p.REAL_TOPIC: b".."}), "bad_real_topic"),
    ("halves", b"body", half({p.REAL_TOPIC: b"a/b"}), "bad_real_topic"),
    ("halves", b"body", half({p.REAL_TOPIC: b"ops"}), "bad_real_topic"),
    ("halves", b"body", half({p.REAL_TOPIC: b"TRANS_CHECK_x"}), "bad_real_topic"),
    ("halves", b"body", half({p.REAL_TOPIC: b"TRANS_CHECK_MAX_TIME_TOPIC"}), "bad_real_topic"),
    ("halves", b"body", half({p.REAL_TOPIC: b"TRANS_UNDELIVERABLE_TOPIC"}), "bad_real_topic"),
    ("halves", b"body", half({p.TRAN_SIZE: b"2", p.TRAN_SEQ: b"1"}), None),
    ("halves", b"body", half({p.TRAN_SIZE: b"10", p.TRAN_SEQ: b"0"}), None),
    ("halves", b"body", half({p.TRAN_SIZE: b"11", p.TRAN_SEQ: b"0"}), "bad_set"),
    ("halves", b"body", half({p.TRAN_SIZE: b"2", p.TRAN_SEQ: b"2"}), "bad_set"),
    ("halves", b"body", half({p.TRAN_SIZE: b"0", p.TRAN_SEQ: b"0"}), "bad_set"),
    ("halves", b"body", half({p.TRAN_SIZE: b"2"}), "bad_set"),
    ("halves", b"body", half({p.TRAN_SEQ: b"0"}), "bad_set"),
    ("halves", b"body", half({p.TRAN_SIZE: b"+2", p.TRAN_SEQ: b"1"}), "bad_set"),
    ("halves", b"x" * 940, half(), None),
    ("halves", b"x" * 1_000, half(), "too_large"),
    ("halves", b"x", half({"user": b"y" * 1_000}), "too_large"),
    ("ops", b"17,18,25,", operation(), None),
    ("ops", b"17", operation({p.UNIQ_KEY: b"a"}), None),
    ("ops", b"17,18", operation({p.UNIQ_KEY: b"a,b"}), None),
    ("ops", b"17", operation({p.SIG: b"k1:0f"}), None),
    ("ops", b"17", operation({p.SIG: b"\xff"}), None),
    ("ops", b"17", operation({p.TXV: b"9"}), "newer_version"),
    ("ops", b"17", operation({p.TRAN_TYPE: None}), "bad_tran_type"),
    ("ops", b"17", operation({p.TRAN_TYPE: b"08"}), "bad_tran_type"),
    ("ops", b"17", operation({p.TRAN_TYPE: b"4"}), "bad_tran_type"),
    ("ops", b"17", operation({p.PGROUP: None}), "bad_producer_group"),
    ("ops", b"", operation(), "bad_offsets"),
    ("ops", None, operation(), "bad_offsets"),
    ("ops", b",17", operation(), "bad_offsets"),
    ("ops", b"17,,18", operation(), "bad_offsets"),
    ("ops", b"17 ", operation(), "bad_offsets"),
    ("ops", b"-1", operation(), "bad_offsets"),
    ("ops", b"9" * 18, operation(), None),
    ("ops", b"9" * 19, operation(), "bad_offsets"),
    ("ops", b"17\n", operation(), "bad_offsets"),
    ("ops", b"17,18", operation({p.UNIQ_KEY: b"a"}), "bad_transaction_id"),
    ("ops", b"17", operation({p.UNIQ_KEY: b"\xff"}), "bad_transaction_id"),
    ("ops", b"17," * 20, operation(), None),
    ("ops", b"17," * 21, operation(), "too_large"),
    ("ops", b"," * 21, operation({p.UNIQ_KEY: b"a"}), "too_large"),
    ("ops", b"x" * 900, operation(), "bad_offsets"),
    ("ops", b"x" * 1_000, operation({p.SIG: b"k1:0f", p.REMARK: b"why"}), "too_large"),
    ("ops", b"x" * 5_000, operation(), "too_large"),
    ("ops", b"17", operation({p.REMARK: b"y" * 1_000}), "too_large"),
    ("ops", b"17", operation({p.TRAN_TYPE: b"4", p.REMARK: b"y" * 1_000}), "bad_tran_type"),
    ("later", b"body", [(p.REAL_TOPIC, b"orders")], None),
    ("later", b"body", [], "bad_real_topic"),
    ("later", b"body", half({p.PGROUP: b"a b"}), "bad_producer_group"),
    ("later", b"body", half({p.UNIQ_KEY: b"a.b"}), "bad_transaction_id"),
    ("later", b"x" * 1_000, [(p.REAL_TOPIC, b"orders")], "too_large"),
    ("later", b"body", [(p.REAL_TOPIC, b"orders"), (p.TXV, b"0")], "newer_version"),
    ("commands", None, [(p.COMMAND, b"PING")], None),
    ("commands", None, [(p.COMMAND, b"ping")], "unknown_command"),
    ("commands", None, [], "unknown_command"),
    ("commands", b"x" * 1_000, [(p.COMMAND, b"PING")], "too_large"),
    ("commands", None, [(p.COMMAND, b"PING"), (p.TARGET, b"t" * 1_000)], "too_large"),
    ("commands", None, [(p.COMMAND, b"PING"), (p.TXV, b"2")], "newer_version"),
]


def test_every_record_is_one_row_with_its_first_reason(decoded: Decode) -> None:
    rows = decoded(*(record[:3] for record in VERDICTS))
    assert len(rows) == len(VERDICTS)
    found = [(record[:3], row["error"]) for record, row in zip(VERDICTS, rows, strict=True)]
    assert found == [(record[:3], record[3]) for record in VERDICTS]
    for (topic, value, headers, reason), row in zip(VERDICTS, rows, strict=True):
        size = len(value or b"") + sum(len(n) + len(v or b"") for n, v in headers or [])
        is_large = size > LIMITS.message_bytes_max or reason == "too_large"
        is_cut = is_large and topic in ("ops", "commands")
        assert row["body"] == (value if value is None or not is_cut else value[:KEPT_BYTES])
        assert row["raw_key"] == b"key"
        if is_cut:
            assert row["raw_headers"] is None
        elif reason is not None:
            assert raw_headers(row) == (headers or [])
            assert row["real_topic"] is None and row["half_offsets"] is None, topic


@pytest.mark.parametrize(
    ("ms", "stored_ms", "reason"),
    [
        (-1, 0, "bad_timestamp"),
        (0, 0, None),
        (p.INSTANT_MS_MAX, p.INSTANT_MS_MAX, None),
        (p.INSTANT_MS_MAX + 1, p.INSTANT_MS_MAX, "bad_timestamp"),
        (-(2**63 // 1_000), 0, "bad_timestamp"),
        ((2**63 - 1) // 1_000, p.INSTANT_MS_MAX, "bad_timestamp"),
    ],
)
def test_a_record_whose_time_no_row_can_hold_has_its_reason(
    ms: int, stored_ms: int, reason: str | None
) -> None:
    ping: list[Header] = [(p.COMMAND, b"PING")]
    for topic, headers in (("halves", half()), ("ops", operation()), ("commands", ping)):
        record = {
            "topic": topic,
            "partition": 3,
            "offset": 1,
            "timestamp": ms * 1_000,
            "value": b"17",
            "headers": [{"key": name, "value": value} for name, value in headers],
        }
        rows = decode_rows(pa.Table.from_pylist([record], schema=KAFKA), LIMITS)
        assert rows["error"].to_pylist() == [reason]
        assert rows["stored_at"].cast(pa.int64()).to_pylist() == [stored_ms * 1_000]


def test_landed_rows_are_the_same_in_any_number_of_tasks_and_files(tmp_path: Path) -> None:
    """Each task lands a part of its own."""

    def of_tasks(tasks: int) -> list[dict[str, Any]]:
        path = tmp_path / str(tasks)
        for task in range(tasks):
            part = records.slice(task * len(records) // tasks, len(records) // tasks)
            landed(part, path / str(task))
        halves = [Lake(str(path / str(task))).read("half") for task in range(tasks)]
        assert all(rows.num_rows for rows in halves)
        return pa.concat_tables(halves).sort_by("queue_offset").to_pylist()

    records = as_read([record[:3] for record in VERDICTS] * 52)
    assert of_tasks(1) == of_tasks(4)


VALUES = (
    None,
    b"",
    b"1",
    b"2",
    b"8",
    b"12",
    b"0",
    b"007",
    b"-1",
    b" 1",
    b"1\n",
    b"shop",
    b"tx-1",
    b"orders",
    b"x" * 1_000,
    b"a,b",
    b"a,",
    b",",
    b"\xff",
    "gr\u00fcn".encode(),
    b"true",
    b"PING",
    b"x" * 130,
    b"9" * 19,
    b"17",
    b"17,18",
    b"..",
    b"TRANS_CHECK_x",
    b"ops",
    b"253402300800000",
)


def test_random_records_are_decoded_as_plain_python_reads_the_protocol() -> None:
    rng = random.Random(7)
    names = [*p.HALF_HEADERS, *p.OP_HEADERS, *p.ADMIN_HEADERS, *p.CHECK_HEADERS, "user", "other"]
    records: list[Record] = []
    for _ in range(3_000):
        headers: list[Header] = [*rng.choice([half, operation, list])()]
        for _ in range(rng.randrange(6)):
            header = rng.choice(names), rng.choice(VALUES)
            headers.insert(rng.randrange(len(headers) + 1), header)
        topic = rng.choice(list(LIMITS.topics.values()))
        records.append((topic, rng.choice(VALUES), headers if rng.random() > 0.02 else None))
    decoded = decode_rows(as_read(records), LIMITS).to_pylist()
    for offset, (record, found) in enumerate(zip(records, decoded, strict=True)):
        place = {
            "queue_id": 3,
            "queue_offset": offset,
            "raw_key": b"key",
            "stored_at": STORED_AT.replace(tzinfo=dt.timezone.utc),
        }
        assert found == plain_row(*record, LIMITS) | place, record
    assert len({row["error"] for row in decoded}) == len({verdict[3] for verdict in VERDICTS})
