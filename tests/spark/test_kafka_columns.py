"""Decoding: what of a record stands in which column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from storage.wire.decode import KEPT_BYTES, decode_rows
from tests.support.kafka_records import (
    LIMITS,
    STORED_AT,
    Header,
    as_read,
    half,
    operation,
    raw_headers,
)
from txlake import protocol as p

Decode = Callable[..., list[dict[str, Any]]]


def test_a_half_in_columns(decoded: Decode) -> None:
    optional = {
        p.REAL_QID: b"5",
        p.KEYS: b"k1 k2",
        p.TAGS: b"t",
        p.DELAY: b"3",
        p.DELIVER_AT: b"1700000000000",
        p.CHECK_IMMUNITY: b"7",
        p.BORN_TIMESTAMP: b"1600000000001",
        p.TRAN_SIZE: b"2",
        p.TRAN_SEQ: b"1",
        p.TXV: b"1",
        "colour": "gr\u00fcn".encode(),
        "empty": b"",
    }
    (row,) = decoded(("halves", b"body", half(optional)))
    utc = dt.timezone.utc
    assert {name: value for name, value in row.items() if value is not None} == {
        "kind": "half",
        "queue_id": 3,
        "queue_offset": 0,
        "stored_at": STORED_AT.replace(tzinfo=utc),
        "producer_group": "shop",
        "transaction_id": "tx-1",
        "real_topic": "orders",
        "real_queue_id": 5,
        "keys": "k1 k2",
        "tags": "t",
        "delay_level": 3,
        "deliver_at": dt.datetime.fromtimestamp(1_700_000_000, utc),
        "immunity_ms": 7_000,
        "tran_size": 2,
        "tran_seq": 1,
        "born_at": dt.datetime.fromtimestamp(1_600_000_000.001, utc),
        "properties": [("colour", "gr\u00fcn"), ("empty", "")],
        "body": b"body",
        "raw_key": b"key",
    }


@pytest.mark.parametrize("topic", ["halves", "later"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_header_of_another_kind_of_record_is_no_property_and_is_kept_raw(
    decoded: Decode, topic: str, is_first: bool
) -> None:
    """No name of any header table is a user's property; what was sent is kept."""
    names = (
        "TRAN_TYPE",
        "FROM_CHECK",
        "CHECK_ID",
        "REMARK",
        "ACTOR",
        "REASON",
        "COMMAND",
        "TARGET",
        "HALF_QUEUE_ID",
        "HALF_QUEUE_OFFSET",
        "CHECK_TIMES",
        "BODY_OMITTED",
    )
    sent = []
    for name in names:
        users: list[Header] = [("colour", b"red"), (name, b"true"), ("size", b"2")]
        sent.append(users + half() if is_first else half() + users)
    rows = decoded(*((topic, b"body", headers) for headers in sent))
    for row, headers in zip(rows, sent, strict=True):
        assert row["error"] is None
        assert row["properties"] == [("colour", "red"), ("size", "2")]
        assert raw_headers(row) == headers
        assert [row[name] for name in ("actor", "reason", "check_id", "target")] == [None] * 4


@pytest.mark.parametrize("is_first", [True, False])
def test_user_headers_are_found_in_any_order(decoded: Decode, is_first: bool) -> None:
    users: list[Header] = [("a", b"1"), ("b", b"2")]
    headers = users + half() if is_first else half() + users
    (row,) = decoded(("halves", b"", headers))
    assert row["properties"] == [("a", "1"), ("b", "2")]
    assert row["raw_headers"] is None
    assert row["producer_group"] == "shop"


def test_user_headers_that_do_not_fit_text_are_kept_raw_and_the_rest_in_properties(
    decoded: Decode,
) -> None:
    users: list[Header] = [("a", b"1"), ("a", b"2"), ("bad", b"\xff\xfe"), ("none", None)]
    (row,) = decoded(("halves", b"", [*half(), *users]))
    assert row["error"] is None
    assert row["properties"] == [("a", "1")]
    assert raw_headers(row) == [*half(), *users]


@pytest.mark.parametrize(
    ("name", "column", "bad"),
    [
        (p.REAL_QID, "real_queue_id", b"abc"),
        (p.REAL_QID, "real_queue_id", b"-1"),
        (p.DELAY, "delay_level", b"abc"),
        (p.DELAY, "delay_level", b"-1"),
        (p.DELIVER_AT, "deliver_at", b"tomorrow"),
        (p.CHECK_IMMUNITY, "immunity_ms", b" 7"),
        (p.CHECK_IMMUNITY, "immunity_ms", b"1.5"),
        (p.CHECK_IMMUNITY, "immunity_ms", b"1234567890"),
        (p.DELAY_MS, "delay_ms", b"1234567890123456"),
        (p.DELAY_MS, "delay_ms", b"1.5"),
        (p.BORN_TIMESTAMP, "born_at", b"1e3"),
        (p.KEYS, "keys", b"\xff"),
        (p.TAGS, "tags", b"\xff"),
    ],
)
def test_an_optional_header_that_cannot_be_read_counts_as_absent_and_is_kept_raw(
    decoded: Decode, name: str, column: str, bad: bytes
) -> None:
    (row,) = decoded(("halves", b"", half({name: bad})))
    assert row["error"] is None
    assert row[column] is None
    assert (name, bad) in raw_headers(row)


@pytest.mark.parametrize("beyond_ms", [p.INSTANT_MS_MAX + 1, 10**18 - 1])
def test_a_time_that_no_column_holds_is_the_last_one_or_absent_and_kept_raw(
    decoded: Decode, beyond_ms: int
) -> None:
    times = {p.DELIVER_AT: b"%d" % beyond_ms, p.BORN_TIMESTAMP: b"%d" % beyond_ms}
    (row,) = decoded(("later", b"", half(times)))
    assert row["error"] is None
    assert row["deliver_at"] == dt.datetime(2262, 4, 11, tzinfo=dt.timezone.utc)
    assert row["born_at"] is None
    assert dict(raw_headers(row)).items() >= times.items()


def test_the_last_instant_is_carried(decoded: Decode) -> None:
    last = b"%d" % p.INSTANT_MS_MAX
    (row,) = decoded(("later", b"", half({p.DELIVER_AT: last, p.BORN_TIMESTAMP: last})))
    assert row["deliver_at"] == row["born_at"] == dt.datetime(2262, 4, 11, tzinfo=dt.timezone.utc)
    assert row["raw_headers"] is None


def test_an_operation_in_columns(decoded: Decode) -> None:
    headers = operation(
        {
            p.TRAN_TYPE: b"12",
            p.UNIQ_KEY: b"a,b",
            p.FROM_CHECK: b"true",
            p.CHECK_ID: b"0-17-0-1",
            p.REMARK: b"why",
            p.ACTOR: b"me",
            p.REASON: b"because",
        }
    )
    (row,) = decoded(("ops", b"17,18,", headers))
    assert (row["decision"], row["half_offsets"], row["transaction_ids"]) == (
        "ROLLBACK",
        [17, 18],
        ["a", "b"],
    )
    assert row["from_check"] is True
    assert (row["check_id"], row["remark"]) == ("0-17-0-1", "why")
    assert (row["actor"], row["reason"]) == ("me", "because")


def test_a_long_operation_is_read() -> None:
    offsets = range(1_000_000, 1_020_000)
    record = ("ops", ",".join(map(str, offsets)).encode(), operation())
    frame = as_read([record])
    allowed = replace(LIMITS, message_bytes_max=1 << 20, operation_namings_max=len(offsets))

    (row,) = decode_rows(frame, allowed).to_pylist()
    assert row["half_offsets"] == list(offsets)

    refused = replace(allowed, operation_namings_max=len(offsets) - 2)
    (row,) = decode_rows(frame, refused).to_pylist()
    assert (row["error"], row["half_offsets"], len(row["body"])) == ("too_large", None, KEPT_BYTES)

    # A plan of before the limits.
    before = replace(LIMITS, operation_namings_max=None)
    (row,) = decode_rows(frame, before).to_pylist()
    assert row["half_offsets"] == list(offsets)
