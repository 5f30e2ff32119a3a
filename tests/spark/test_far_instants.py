"""Every instant in a lake is one that pandas, Spark in every time zone and Python can hold."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.explain.show import lines
from pipelines.operate.delays import read_waiting
from pipelines.spark_tables import create_views
from storage.lake.lake import Lake
from storage.schemas import TABLES
from storage.wire.decode import decode_rows
from tests.support.explain_reports import report_of
from tests.support.in_memory_job import InMemoryJob
from tests.support.kafka_records import LIMITS, half
from txlake import protocol as p

LAST_AT = dt.datetime(2262, 4, 11, tzinfo=dt.timezone.utc)
CENTURY_MS = 36_500 * 86_400_000
DIGITS_18 = b"9" * 18
FAR = {p.DELIVER_AT: DIGITS_18, p.BORN_TIMESTAMP: DIGITS_18}
ZONES = ("Pacific/Kiritimati", "Pacific/Pago_Pago", "America/St_Johns")  # UTC+14, -11, -3:30


def decoded(headers: dict[str, bytes]) -> dict[str, Any]:
    """Return what a half with these headers, stored at 10^15 ms, has in its columns."""
    record = {
        "topic": "halves",
        "partition": 0,
        "offset": 0,
        "timestamp": 10**18,
        "key": None,
        "value": b"",
        "headers": [{"key": k, "value": v} for k, v in half(dict(headers))],
    }
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    (row,) = decode_rows(pa.Table.from_pylist([record], schema=schema), LIMITS).to_pylist()
    assert row["error"] == "bad_timestamp"
    assert row["stored_at"] == LAST_AT
    return row


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> InMemoryJob:
    """Return a job whose records ask for the latest instants that there are."""
    decoded(FAR)
    path = tmp_path_factory.mktemp("far") / "lake"
    limits: dict[str, Any] = {
        "delay_levels_ms": (CENTURY_MS,),
        "deliver_at_max_ms": CENTURY_MS,
        "deliver_at_goes_first": True,
        "due_at_max": p.INSTANT_MS_MAX,
        "reject_after_immunity": True,
    }
    job = InMemoryJob(path, **limits)
    last: dict[str, Any] = {"stored_at": p.INSTANT_MS_MAX}
    asked = [{"delay_level": 1}, {"delay_ms": 10**15 - 1}, {"deliver_at": p.INSTANT_MS_MAX}]
    for columns in asked:
        job.end(p.COMMIT, job.half(**columns, **last), **last)
        job.schedule(**columns, **last)
        job.schedule(**columns)
    job.half("open", immunity_ms=999_999_999_000, born_at=p.INSTANT_MS_MAX, **last)
    job.end(p.UNKNOWN, 3, **last)
    job.end(p.COMMIT, 99, **last)
    job.run()
    return job


@pytest.fixture(scope="module")
def lake(job: InMemoryJob) -> Lake:
    return job.lake


@pytest.fixture(params=ZONES)
def zone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> Iterator[str]:
    name = str(request.param)
    before = spark.conf.get("spark.sql.session.timeZone")
    monkeypatch.setenv("TZ", name)
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", name)
    yield name
    spark.conf.set("spark.sql.session.timeZone", before)
    monkeypatch.undo()
    time.tzset()


def test_spark_holds_every_instant_in_every_time_zone(
    spark: SparkSession, lake: Lake, zone: str
) -> None:
    create_views(spark, lake.path, "far_")
    for table in TABLES:
        if table != "lake":
            frame = spark.table(f"far_{table}")
            assert len(frame.collect()) == len(frame.toPandas()), (table, zone)


def test_pandas_and_python_hold_every_instant(lake: Lake) -> None:
    reached = set()
    for table, schema in TABLES.items():
        rows = lake.read(table)
        rows.to_pandas(coerce_temporal_nanoseconds=True)
        for field in schema:
            if pa.types.is_timestamp(field.type):
                instants = [at for at in rows[field.name].to_pylist() if at is not None]
                assert all(at <= LAST_AT for at in instants), (table, field.name)
                reached |= {f"{table}.{field.name}" for at in instants if at == LAST_AT}
    assert reached >= {
        "half.stored_at",
        "half.deliver_at",
        "half.born_at",
        "op.stored_at",
        "schedule.stored_at",
        "schedule.deliver_at",
        "delayed.deliver_at",
        "pending.stored_at",
        "pending.deadline_at",
        "pending.last_answer_at",
        "waiting.stored_at",
    }


def test_commands_tell_of_the_last_instants(job: InMemoryJob) -> None:
    waiting = read_waiting(job.lake)
    assert waiting.count == len(waiting.messages) == 9
    assert max(row["deliver_at"] for row in waiting.messages) == p.INSTANT_MS_MAX
    for target in ("0-0", "0-3", "schedule:0-0", "open"):
        text = "\n".join(lines(report_of(job, target)))
        assert "2262-04-1" in text or "2125-" in text, text
