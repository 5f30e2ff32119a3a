"""A Spark frame's rows as Arrow batches, while Spark still makes the rest.

`DataFrame.toArrow` returns when the last row has come. One core would then decode all rows while
the other is idle. Here the same stream is read batch by batch, by the functions that PySpark (whose
version is pinned) has below `toArrow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def arrow_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Returns all rows of a frame, a batch for each partition as soon as it is ready.

    Errors: Spark's own, as `toArrow` raises them.
    """
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer
    from pyspark.util import _load_from_socket

    java: Any = frame
    port, secret, server = java._jdf.collectAsArrowToPython()
    try:
        place: Any = (port, secret)
        with _load_from_socket(place, ArrowCollectSerializer()) as stream:  # type: ignore[no-untyped-call]
            # The stream ends with the order of the batches.
            yield from (batch for batch in stream if isinstance(batch, pa.RecordBatch))
    finally:
        with unwrap_spark_exception():
            server.getResult()
