"""A Spark frame's rows as Arrow batches, while Spark still makes the rest.

`DataFrame.toArrow` returns when the last row has come. One core would then decode all rows while
the other is idle. Here the same stream is read batch by batch, by the functions that PySpark (whose
version is pinned) has below `toArrow`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("txlake.driver")

_OPENINGS = 3


def arrow_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Returns all rows of a frame, a batch for each partition as soon as it is ready.

    Errors: Spark's own, as `toArrow` raises them.
    """
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer

    file, socket, server = _open_arrow_socket(frame)
    try:
        # The stream ends with the order of the batches.
        stream: Iterator[Any] = ArrowCollectSerializer().load_stream(file)  # type: ignore[no-untyped-call]
        yield from (batch for batch in stream if isinstance(batch, pa.RecordBatch))
    finally:
        file.close()
        socket.close()
        with unwrap_spark_exception():
            server.getResult()


def _open_arrow_socket(frame: DataFrame) -> tuple[Any, Any, Any]:
    """Opens the socket on which the JVM serves a frame's rows; only then the Spark job begins.

    The JVM takes one connection, and gives it 10 s to show the secret. If that was a stranger's, or
    this process was suspended for so long, nothing is served and the JVM's result never comes: we
    do not wait for it, but open another.

    Output: file, socket, the JVM's server. Errors: PySparkRuntimeError, EOFError.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.util import _create_local_socket

    java: Any = frame
    remaining = _OPENINGS

    while True:
        port, secret, server = java._jdf.collectAsArrowToPython()
        address: Any = (port, secret)
        try:
            file, socket = _create_local_socket(address)
            return file, socket, server
        except (PySparkRuntimeError, EOFError) as error:
            remaining -= 1
            if not remaining:
                raise
            log.warning("Spark did not serve its rows, and is asked again: %s", error)
