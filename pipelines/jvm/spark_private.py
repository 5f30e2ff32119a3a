"""What we use of PySpark and py4j that they do not promise: all of it, and nowhere else.

Both are pinned. `tests/spark/test_spark_private.py` uses each of these and names the versions that
it was written for, so that a new version says here what has moved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def has_context() -> bool:
    """Returns whether this process has a Spark context already."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def launch_jvm(conf: SparkConf, lock_fds: tuple[int, ...], stderr: int | None) -> Any:
    """Starts the JVM, which inherits these files, and returns py4j's gateway to it.

    Input: `stderr`: a file, or one of subprocess's constants; None: this process's own.
    """
    from pyspark.java_gateway import launch_gateway

    return launch_gateway(  # type: ignore[no-untyped-call]
        conf, popen_kwargs={"pass_fds": lock_fds, "stderr": stderr}
    )


def jvm_of(session: SparkSession | SparkContext) -> Any:
    """Returns the JVM of a session or a context, as py4j shows it: its packages by their names."""
    return session._jvm


def jvm_process(spark: SparkSession) -> Any:
    """Returns the session's JVM as a child process; None under spark-submit, which has made it."""
    gateway: Any = spark.sparkContext._gateway
    return getattr(gateway, "proc", None)


def open_callback_port(spark: SparkSession) -> None:
    """Opens the port on which the JVM calls this process, if it is not open."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]


def hadoop_configuration(spark: SparkSession) -> Any:
    """Returns Hadoop's configuration of a session, which stands in no page and no event log."""
    context: Any = spark.sparkContext
    return context._jsc.hadoopConfiguration()


def silence_accumulators(context: SparkContext) -> None:
    """Lets the server of accumulators print nothing when a task's connection ends."""
    accumulators: Any = context._accumulatorServer
    accumulators.handle_error = lambda *_: None


def silence_py4j() -> None:
    """Lets py4j log nothing, by its own logger or by the root's.

    A JVM that is killed leaves connections, and a traceback would be printed for each.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def spark_schema(schema: pa.Schema) -> StructType:
    """Returns an Arrow schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def serve_rows(frame: DataFrame) -> tuple[Any, Any]:
    """Lets the JVM serve a frame's rows on a socket of its own; the Spark job begins with a reader.

    Output: where, for `connect_to_rows`; the JVM's server, whose result is the job's.
    """
    java: Any = frame
    port, secret, server = java._jdf.collectAsArrowToPython()
    return (port, secret), server


def connect_to_rows(address: Any) -> tuple[Any, Any]:
    """Connects to where rows are served. Output: file, socket.

    Errors: PySparkRuntimeError, EOFError where the JVM does not serve them any more.
    """
    from pyspark.util import _create_local_socket

    return _create_local_socket(address)


def read_served(file: Any) -> Iterator[Any]:
    """Returns the served Arrow batches, and at the end their order."""
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer

    batches: Iterator[Any] = ArrowCollectSerializer().load_stream(file)  # type: ignore[no-untyped-call]
    return batches


def end_of_rows(server: Any) -> None:
    """Waits for the end of the job whose rows were served. Errors: Spark's own, as `toArrow`'s."""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception

    with unwrap_spark_exception():
        server.getResult()
