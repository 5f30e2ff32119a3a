"""A Spark frame's rows as Arrow batches, while Spark still makes the rest.

`DataFrame.toArrow` returns when the last row has come. One core would then decode all rows while
the other is idle. Here the same stream is read batch by batch, by the functions that PySpark has
below `toArrow`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.jvm import spark_private

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("txlake.driver")

_OPENINGS = 3


def arrow_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Returns all rows of a frame, a batch for each partition as soon as it is ready.

    Errors: Spark's own, as `toArrow` raises them.
    """
    file, socket, server = _open_arrow_socket(frame)
    try:
        # The stream ends with the order of the batches.
        stream = spark_private.read_served(file)
        yield from (batch for batch in stream if isinstance(batch, pa.RecordBatch))
    finally:
        file.close()
        socket.close()
        spark_private.end_of_rows(server)


def _open_arrow_socket(frame: DataFrame) -> tuple[Any, Any, Any]:
    """Opens the socket on which the JVM serves a frame's rows; only then the Spark job begins.

    The JVM takes one connection, and gives it 10 s to show the secret. If that was a stranger's, or
    this process was suspended for so long, nothing is served and the JVM's result never comes: we
    do not wait for it, but open another.

    Output: file, socket, the JVM's server. Errors: PySparkRuntimeError, EOFError.
    """
    from pyspark.errors import PySparkRuntimeError

    remaining = _OPENINGS
    while True:
        address, server = spark_private.serve_rows(frame)
        try:
            return *spark_private.connect_to_rows(address), server
        except (PySparkRuntimeError, EOFError) as error:
            remaining -= 1
            if not remaining:
                raise
            log.warning("Spark did not serve its rows, and is asked again: %s", error)
