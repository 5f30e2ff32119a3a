"""Decoding: every record is one row; what cannot be read has its reason and is kept raw.

By itself, and in the tasks of Spark that land records: the rows that come back, and the files.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipelines.land import land
from storage import schemas
from storage.kafka_arrow import RECORDS, decode_rows
from storage.kafka_rows import ADMIN, HALF, KINDS, OP, SCHEDULE, WireLimits
from storage.lake import Lake
from storage.land import HEAVY, Landing
from tests.plain_decoder import plain_row
from txlake import protocol as p

Header = tuple[str, bytes | None]
Record = tuple[str, bytes | None, list[Header] | None]  # topic, value, headers
Decode = Callable[..., list[dict[str, Any]]]

STORED_AT = dt.datetime(2026, 1, 2, 3, 4, 5)
LIMITS = WireLimits(
    topics={HALF: "halves", OP: "ops", SCHEDULE: "later", ADMIN: "commands"},
    check_topic_prefix="TRANS_CHECK_",
    message_bytes_max=1_000,
    messages_max=10,
)
RECORD_FIELDS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
    ]
)
HALF_HEADERS: dict[str, bytes] = {
    p.TRAN_MSG: b"true",
    p.PGROUP: b"shop",
    p.UNIQ_KEY: b"tx-1",
    p.REAL_TOPIC: b"orders",
}
OP_HEADERS: dict[str, bytes] = {p.TAGS: b"d", p.PGROUP: b"shop", p.TRAN_TYPE: b"8"}


def _records(spark: SparkSession, records: list[Record]):  # type: ignore[no-untyped-def]
    rows = [
        (b"key", value, topic, 3, offset, STORED_AT, headers)
        for offset, (topic, value, headers) in enumerate(records)
    ]
    return spark.createDataFrame(rows, RECORD_FIELDS)


@pytest.fixture(params=["by tasks", "by itself"])
def decoded(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Decode:
    """Return one of the two ways. Output: RECORDS as plain rows; maps as lists of pairs."""

    def run(*records: Record) -> list[dict[str, Any]]:
        frame = _records(spark, list(records))
        if request.param == "by tasks":
            return _landed(frame, tmp_path / "lake")
        rows: list[dict[str, Any]] = decode_rows(frame.toArrow(), LIMITS).to_pylist()
        return rows

    return run


def _landed(frame: DataFrame, path: Path, tasks: int = 2) -> list[dict[str, Any]]:
    """Land records and put together again what came back and what was written."""
    lake = Lake(str(path))
    for kind in (HALF, SCHEDULE):
        lake.create_table(kind)
    batch = land(frame, Landing(lake.place, 1, LIMITS), tasks)
    rows = []
    for kind in KINDS:
        lake.add_files(kind, batch.files.get(kind, []), 1)
        heavy = lake.read(kind).sort_by("queue_offset") if kind in (HALF, SCHEDULE) else None
        for place, kept in enumerate(batch.rows(kind).to_pylist()):
            assert not {name for name in kept if name not in schemas.TABLES[kind].names}
            row = dict.fromkeys(RECORDS.names) | {"kind": kind} | kept
            rows.append(row)
            if heavy is not None:
                assert not any(row[name] for name in HEAVY), "no body comes to the driver"
                (written,) = heavy.slice(place, 1).to_pylist()
                assert written.pop("epoch") == 1
                named = {name: row[name] for name in written if name not in HEAVY}
                assert {name: written[name] for name in named} == named
                row |= written
    return sorted(rows, key=lambda row: int(row["queue_offset"]))


def _half(changes: dict[str, bytes | None] | None = None) -> list[Header]:
    """Return a half's headers; None takes one away."""
    headers = {**HALF_HEADERS, **(changes or {})}
    return [(name, value) for name, value in headers.items() if value is not None]


def _op(changes: dict[str, bytes | None] | None = None) -> list[Header]:
    headers = {**OP_HEADERS, **(changes or {})}
    return [(name, value) for name, value in headers.items() if value is not None]


# record (topic, value, headers) -> the reason, or None where it can be read
VERDICTS: list[tuple[str, bytes | None, list[Header] | None, str | None]] = [
    ("halves", b"body", _half(), None),
    ("halves", None, _half(), None),
    ("halves", b"body", _half({p.TXV: b"1"}), None),
    ("halves", b"body", _half({p.TXV: b"2"}), "newer_version"),
    ("halves", b"body", _half({p.TXV: b"2", p.PGROUP: b"?"}), "newer_version"),
    ("halves", b"body", _half({p.TXV: b""}), "newer_version"),
    ("halves", b"body", [*_half(), (p.TXV, None)], "newer_version"),
    ("halves", b"body", None, "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: None}), "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: b""}), "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: b"a b"}), "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: b"a\n"}), "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: b"g" * 127}), None),
    ("halves", b"body", _half({p.PGROUP: b"g" * 128}), "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: "gr\u00fcn".encode()}), "bad_producer_group"),
    ("halves", b"body", _half({p.PGROUP: b"\xff"}), "bad_producer_group"),
    ("halves", b"body", [(p.PGROUP, b"g"), *_half({p.PGROUP: None}), (p.PGROUP, b"?")], None),
    ("halves", b"body", _half({p.UNIQ_KEY: None}), "bad_transaction_id"),
    ("halves", b"body", _half({p.UNIQ_KEY: b"a.b"}), "bad_transaction_id"),
    ("halves", b"body", _half({p.UNIQ_KEY: b"t" * 129}), "bad_transaction_id"),
    ("halves", b"body", _half({p.REAL_TOPIC: None}), "bad_real_topic"),
    ("halves", b"body", _half({p.REAL_TOPIC: b".."}), "bad_real_topic"),
    ("halves", b"body", _half({p.REAL_TOPIC: b"a/b"}), "bad_real_topic"),
    ("halves", b"body", _half({p.REAL_TOPIC: b"ops"}), "bad_real_topic"),
    ("halves", b"body", _half({p.REAL_TOPIC: b"TRANS_CHECK_x"}), "bad_real_topic"),
    ("halves", b"body", _half({p.REAL_TOPIC: b"TRANS_CHECK_MAX_TIME_TOPIC"}), "bad_real_topic"),
    ("halves", b"body", _half({p.REAL_TOPIC: b"TRANS_UNDELIVERABLE_TOPIC"}), "bad_real_topic"),
    ("halves", b"body", _half({p.TRAN_SIZE: b"2", p.TRAN_SEQ: b"1"}), None),
    ("halves", b"body", _half({p.TRAN_SIZE: b"10", p.TRAN_SEQ: b"0"}), None),
    ("halves", b"body", _half({p.TRAN_SIZE: b"11", p.TRAN_SEQ: b"0"}), "bad_set"),
    ("halves", b"body", _half({p.TRAN_SIZE: b"2", p.TRAN_SEQ: b"2"}), "bad_set"),
    ("halves", b"body", _half({p.TRAN_SIZE: b"0", p.TRAN_SEQ: b"0"}), "bad_set"),
    ("halves", b"body", _half({p.TRAN_SIZE: b"2"}), "bad_set"),
    ("halves", b"body", _half({p.TRAN_SEQ: b"0"}), "bad_set"),
    ("halves", b"body", _half({p.TRAN_SIZE: b"+2", p.TRAN_SEQ: b"1"}), "bad_set"),
    ("halves", b"x" * 940, _half(), None),
    ("halves", b"x" * 1_000, _half(), "too_large"),
    ("halves", b"x", _half({"user": b"y" * 1_000}), "too_large"),
    ("ops", b"17,18,25,", _op(), None),
    ("ops", b"17", _op({p.UNIQ_KEY: b"a"}), None),
    ("ops", b"17,18", _op({p.UNIQ_KEY: b"a,b"}), None),
    ("ops", b"17", _op({p.TXV: b"9"}), "newer_version"),
    ("ops", b"17", _op({p.TRAN_TYPE: None}), "bad_tran_type"),
    ("ops", b"17", _op({p.TRAN_TYPE: b"08"}), "bad_tran_type"),
    ("ops", b"17", _op({p.TRAN_TYPE: b"4"}), "bad_tran_type"),
    ("ops", b"17", _op({p.PGROUP: None}), "bad_producer_group"),
    ("ops", b"", _op(), "bad_offsets"),
    ("ops", None, _op(), "bad_offsets"),
    ("ops", b",17", _op(), "bad_offsets"),
    ("ops", b"17,,18", _op(), "bad_offsets"),
    ("ops", b"17 ", _op(), "bad_offsets"),
    ("ops", b"-1", _op(), "bad_offsets"),
    ("ops", b"9" * 18, _op(), None),
    ("ops", b"9" * 19, _op(), "bad_offsets"),
    ("ops", b"17\n", _op(), "bad_offsets"),
    ("ops", b"17,18", _op({p.UNIQ_KEY: b"a"}), "bad_transaction_id"),
    ("ops", b"17", _op({p.UNIQ_KEY: b"\xff"}), "bad_transaction_id"),
    ("later", b"body", [(p.REAL_TOPIC, b"orders")], None),
    ("later", b"body", [], "bad_real_topic"),
    ("later", b"body", _half({p.PGROUP: b"a b"}), "bad_producer_group"),
    ("later", b"body", _half({p.UNIQ_KEY: b"a.b"}), "bad_transaction_id"),
    ("later", b"x" * 1_000, [(p.REAL_TOPIC, b"orders")], "too_large"),
    ("later", b"body", [(p.REAL_TOPIC, b"orders"), (p.TXV, b"0")], "newer_version"),
    ("commands", None, [(p.COMMAND, b"PING")], None),
    ("commands", None, [(p.COMMAND, b"ping")], "unknown_command"),
    ("commands", None, [], "unknown_command"),
    ("commands", None, [(p.COMMAND, b"PING"), (p.TXV, b"2")], "newer_version"),
]


def test_every_record_is_one_row_with_its_first_reason(decoded: Decode) -> None:
    rows = decoded(*(record[:3] for record in VERDICTS))
    assert len(rows) == len(VERDICTS)
    found = [(record[:3], row["error"]) for record, row in zip(VERDICTS, rows, strict=True)]
    assert found == [(record[:3], record[3]) for record in VERDICTS]
    for (topic, value, headers, reason), row in zip(VERDICTS, rows, strict=True):
        assert row["body"] == value
        assert row["raw_key"] == b"key"
        if reason is not None:
            assert _raw(row) == (headers or [])
            assert row["real_topic"] is None and row["half_offsets"] is None, topic


def _raw(row: dict[str, Any]) -> list[Header]:
    return [(header["key"], header["value"]) for header in row["raw_headers"]]


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
    (row,) = decoded(("halves", b"body", _half(optional)))
    utc = dt.timezone.utc
    assert {name: value for name, value in row.items() if value is not None} == {
        "kind": "half", "queue_id": 3, "queue_offset": 0,
        "stored_at": STORED_AT.replace(tzinfo=utc),
        "producer_group": "shop", "transaction_id": "tx-1",
        "real_topic": "orders", "real_queue_id": 5, "keys": "k1 k2", "tags": "t",
        "delay_level": 3, "deliver_at": dt.datetime.fromtimestamp(1_700_000_000, utc),
        "immunity_ms": 7_000, "tran_size": 2, "tran_seq": 1,
        "born_at": dt.datetime.fromtimestamp(1_600_000_000.001, utc),
        "properties": [("colour", "gr\u00fcn"), ("empty", "")], "body": b"body",
        "raw_key": b"key",
    }  # fmt: skip


@pytest.mark.parametrize("topic", ["halves", "later"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_header_of_another_kind_of_record_is_no_property_and_is_kept_raw(
    decoded: Decode, topic: str, is_first: bool
) -> None:
    """No name of any header table is a user's property; what was sent is kept."""
    names = (
        "TRAN_TYPE", "FROM_CHECK", "CHECK_ID", "REMARK", "ACTOR", "REASON", "COMMAND", "TARGET",
        "HALF_QUEUE_ID", "HALF_QUEUE_OFFSET", "CHECK_TIMES", "BODY_OMITTED",
    )  # fmt: skip
    sent = []
    for name in names:
        users: list[Header] = [("colour", b"red"), (name, b"true"), ("size", b"2")]
        sent.append(users + _half() if is_first else _half() + users)
    rows = decoded(*((topic, b"body", headers) for headers in sent))
    for row, headers in zip(rows, sent, strict=True):
        assert row["error"] is None
        assert row["properties"] == [("colour", "red"), ("size", "2")]
        assert _raw(row) == headers
        assert [row[name] for name in ("actor", "reason", "check_id", "target")] == [None] * 4


@pytest.mark.parametrize("is_first", [True, False])
def test_user_headers_are_found_in_any_order(decoded: Decode, is_first: bool) -> None:
    users: list[Header] = [("a", b"1"), ("b", b"2")]
    headers = users + _half() if is_first else _half() + users
    (row,) = decoded(("halves", b"", headers))
    assert row["properties"] == [("a", "1"), ("b", "2")]
    assert row["raw_headers"] is None
    assert row["producer_group"] == "shop"


def test_user_headers_that_do_not_fit_text_are_kept_raw_and_the_rest_in_properties(
    decoded: Decode,
) -> None:
    users: list[Header] = [("a", b"1"), ("a", b"2"), ("bad", b"\xff\xfe"), ("none", None)]
    (row,) = decoded(("halves", b"", [*_half(), *users]))
    assert row["error"] is None
    assert row["properties"] == [("a", "1")]
    assert _raw(row) == [*_half(), *users]


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
        (p.BORN_TIMESTAMP, "born_at", b"1e3"),
        (p.KEYS, "keys", b"\xff"),
        (p.TAGS, "tags", b"\xff"),
    ],
)
def test_an_optional_header_that_cannot_be_read_counts_as_absent_and_is_kept_raw(
    decoded: Decode, name: str, column: str, bad: bytes
) -> None:
    (row,) = decoded(("halves", b"", _half({name: bad})))
    assert row["error"] is None
    assert row[column] is None
    assert (name, bad) in _raw(row)


def test_an_instant_after_the_year_9999_is_its_last(decoded: Decode) -> None:
    (row,) = decoded(("later", b"", _half({p.DELIVER_AT: b"999999999999999999"})))
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.timezone.utc)
    assert row["deliver_at"] == last


def test_an_operation_in_columns(decoded: Decode) -> None:
    headers = _op(
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
        "ROLLBACK", [17, 18], ["a", "b"],
    )  # fmt: skip
    assert row["from_check"] is True
    assert (row["check_id"], row["remark"]) == ("0-17-0-1", "why")
    assert (row["actor"], row["reason"]) == ("me", "because")


def test_a_long_operation_is_read(decoded: Decode) -> None:
    offsets = range(1_000_000, 1_020_000)
    (row,) = decoded(("ops", ",".join(map(str, offsets)).encode(), _op()))
    assert row["half_offsets"] == list(offsets)


def test_ticks_are_no_records(spark: SparkSession, tmp_path: Path) -> None:
    ticks = spark.createDataFrame([(None,) * len(RECORD_FIELDS)], RECORD_FIELDS)
    batch = land(ticks, Landing(Lake(str(tmp_path)).place, 1, LIMITS), 1)
    assert (batch.by_kind, batch.files, list(tmp_path.iterdir())) == ({}, {}, [])


def test_landed_rows_are_the_same_in_any_number_of_tasks_and_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    def landed(tasks: int) -> DataFrame:
        return spark.createDataFrame(
            Lake(str(tmp_path / str(tasks))).read("half").sort_by("queue_offset")
        )

    records = [record[:3] for record in VERDICTS] * 50
    for tasks in (1, 4):
        _landed(_records(spark, records).repartition(tasks), tmp_path / str(tasks), tasks)
    assert_df_equality(landed(1), landed(4), ignore_nullable=True)


VALUES = (
    None, b"", b"1", b"2", b"8", b"12", b"0", b"007", b"-1", b" 1", b"1\n", b"shop", b"tx-1",
    b"orders", b"x" * 1_000, b"a,b", b"a,", b",", b"\xff", "gr\u00fcn".encode(), b"true", b"PING",
    b"x" * 130, b"9" * 19, b"17", b"17,18", b"..", b"TRANS_CHECK_x", b"ops", b"253402300800000",
)  # fmt: skip


def test_random_records_are_decoded_as_plain_python_reads_the_protocol(spark: SparkSession) -> None:
    rng = random.Random(7)
    names = [*p.HALF_HEADERS, *p.OP_HEADERS, *p.ADMIN_HEADERS, *p.CHECK_HEADERS, "user", "other"]
    records: list[Record] = []
    for _ in range(3_000):
        headers: list[Header] = [*rng.choice([_half, _op, list])()]
        for _ in range(rng.randrange(6)):
            header = rng.choice(names), rng.choice(VALUES)
            headers.insert(rng.randrange(len(headers) + 1), header)
        topic = rng.choice(list(LIMITS.topics.values()))
        records.append((topic, rng.choice(VALUES), headers if rng.random() > 0.02 else None))
    decoded = decode_rows(_records(spark, records).toArrow(), LIMITS).to_pylist()
    for offset, (record, found) in enumerate(zip(records, decoded, strict=True)):
        place = {
            "queue_id": 3, "queue_offset": offset, "raw_key": b"key",
            "stored_at": STORED_AT.replace(tzinfo=dt.timezone.utc),
        }  # fmt: skip
        assert found == plain_row(*record, LIMITS) | place, record
    assert len({row["error"] for row in decoded}) == len({verdict[3] for verdict in VERDICTS})
