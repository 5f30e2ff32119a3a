"""Each private interface of PySpark and py4j that we use, with the versions it is known in."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.jvm import spark_private

ROOT = Path(__file__).parents[2]
# All tests of this file passed with these. Others are added when they pass with them, too.
KNOWN = {"pyspark": ("4.2.0",), "py4j": ("0.10.9.9",)}
PRIVATE = re.compile(
    r"\._(jvm|gateway|jsc|jdf|jsparkSession|active_spark_context|accumulatorServer)\b"
    r"|pyspark\.(java_gateway|util|errors\.exceptions|sql\.pandas)"
)


@pytest.mark.parametrize("package", KNOWN)
def test_the_installed_version_is_one_that_these_interfaces_are_known_in(package: str) -> None:
    assert metadata.version(package) in KNOWN[package], "read pipelines/jvm/spark_private.py anew"


def test_private_interfaces_are_used_in_one_module_alone() -> None:
    using = {
        path.relative_to(ROOT).as_posix()
        for room in ("pipelines", "storage", "checker", "client")
        for path in (ROOT / room).rglob("*.py")
        if re.search(PRIVATE, re.sub(r"self\._jvm\b", "", path.read_text("utf-8")))
    }
    assert using == {"pipelines/jvm/spark_private.py"}


def test_a_session_shows_its_jvm_its_process_and_its_hadoop(spark: SparkSession) -> None:
    assert spark_private.has_context()
    assert spark_private.jvm_process(spark).poll() is None
    for of_session in (spark, spark.sparkContext):
        assert spark_private.jvm_of(of_session).java.lang.Math.max(1, 2) == 2

    configuration = spark_private.hadoop_configuration(spark)
    configuration.set("txlake.test", "here")
    assert spark_private.hadoop_configuration(spark).get("txlake.test") == "here"
    assert spark.conf.get("txlake.test", None) is None


def test_the_jvm_calls_this_process_on_the_port_that_is_opened(spark: SparkSession) -> None:
    spark_private.open_callback_port(spark)
    spark_private.open_callback_port(spark)  # it is open

    class Supplier:
        def get(self) -> str:
            return "called"

        class Java:
            implements = ["java.util.function.Supplier"]  # noqa: RUF012

    jvm = spark_private.jvm_of(spark)
    called = jvm.java.util.concurrent.CompletableFuture.supplyAsync(Supplier())
    assert called.get() == "called"


def test_accumulators_print_nothing_where_a_connection_ends(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    spark_private.silence_accumulators(spark.sparkContext)
    server: Any = spark.sparkContext._accumulatorServer
    server.handle_error(None, ("127.0.0.1", 1))
    assert capsys.readouterr().err == ""


def test_served_rows_come_as_batches_and_their_job_ends(spark: SparkSession) -> None:
    place, server = spark_private.serve_rows(spark.range(0, 5, 1, 2))
    file, socket = spark_private.connect_to_rows(place)
    *batches, order = spark_private.read_served(file)
    file.close()
    socket.close()
    spark_private.end_of_rows(server)

    rows = pa.Table.from_batches(batches)["id"].to_pylist()
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert sorted(order) == list(range(len(batches)))


def test_a_schema_of_arrow_is_one_of_spark() -> None:
    schema = pa.schema([("queue_id", pa.int32()), ("stored_at", pa.timestamp("us", "UTC"))])
    found = spark_private.spark_schema(schema)
    assert found.simpleString() == "struct<queue_id:int,stored_at:timestamp>"


def test_a_job_that_fails_ends_with_sparks_own_error(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("raise_error('told apart')")
    place, server = spark_private.serve_rows(frame)
    file, socket = spark_private.connect_to_rows(place)
    try:
        with pytest.raises(PySparkException, match="told apart"):
            list(spark_private.read_served(file))
            spark_private.end_of_rows(server)
    finally:
        file.close()
        socket.close()
