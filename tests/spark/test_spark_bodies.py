"""Bodies as columns in Spark: the same rows as everywhere, in views, frames and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.spark_tables import create_views, read_topic, read_topic_stream, with_body_columns
from tests.support.in_memory_job import InMemoryJob
from txlake import BodySchema
from txlake.protocol import COMMIT

SCHEMA = BodySchema(
    "json",
    json.dumps(
        {
            "properties": {
                "order_id": {"type": "string"},
                "amount": {"type": "integer"},
                "at": {"type": "string", "format": "date-time"},
                "day": {"type": "string", "format": "date"},
                "lines": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"item": {"type": "string"}}},
                },
                "labels": {"type": "object", "additionalProperties": {"type": "number"}},
                "keys": {"type": "string"},
            }
        }
    ).encode(),
)
BODIES = [
    b'{"order_id": "o-1", "amount": 5, "at": "2026-01-31T08:00:00Z", "day": "2026-01-31",'
    b' "lines": [{"item": "tea"}], "labels": {"a": 0.5}, "keys": "k"}',
    b'{"order_id": "o-2", "amount": "many"}',
    b"no JSON",
    None,
]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[InMemoryJob]:
    job = InMemoryJob(tmp_path / "lake", default_queue_count=1)
    for topics in (("orders", "a.b-c", "half"), ("HALF", "Orders")):
        for topic in topics:
            for number, body in enumerate(BODIES):
                transaction_id = f"{topic.replace('.', '')}-{number}"
                job.end(COMMIT, job.half(transaction_id, real_topic=topic, body=body))
        job.run()

    yield job
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


def test_a_topic_with_a_schema_is_a_view_with_typed_columns(
    spark: SparkSession, job: InMemoryJob
) -> None:
    bodies = dict.fromkeys(("Orders", "orders", "a.b-c", "half", "HALF", "to_come"), SCHEMA)
    create_views(spark, job.lake.path, bodies=bodies)
    number = {row["topic"]: row["table_id"] for row in job.lake.read("catalog").to_pylist()}
    decoded = SCHEMA.with_columns(job.lake.read(f"topics/{number['orders']}"))

    for view in ("orders", "`a.b-c`"):
        names = [name for name in SCHEMA.columns.names if name != "labels"]
        found = spark.sql(f"SELECT * FROM {view} ORDER BY queue_offset").toArrow()
        assert found.column_names == decoded.column_names
        assert found.select(names).to_pylist() == decoded.select(names).to_pylist()
        assert found["body"].to_pylist() == BODIES

    assert spark.sql("SELECT labels['a'] AS a FROM orders WHERE amount = 5").collect()[0].a == 0.5
    assert "order_id" not in spark.table("half").columns


def test_a_younger_topic_that_differs_by_case_takes_no_view(
    spark: SparkSession, job: InMemoryJob
) -> None:
    """Spark ignores the case of names: it would be in the place of the other one."""
    create_views(spark, job.lake.path, bodies={"Orders": SCHEMA})
    assert not spark.catalog.tableExists("orders")


def test_a_stream_has_typed_columns(spark: SparkSession, job: InMemoryJob, tmp_path: Path) -> None:
    rows = with_body_columns(read_topic_stream(spark, job.lake.path, "orders"), SCHEMA)
    query = rows.writeStream.format("memory").queryName("typed_orders")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()

    expected = with_body_columns(read_topic(spark, job.lake.path, "orders"), SCHEMA)
    order = ["queue_offset", "order_id", "amount", "body_error"]
    assert spark.table("typed_orders").select(order).orderBy(*order).collect() == (
        expected.select(order).orderBy(*order).collect()
    )
