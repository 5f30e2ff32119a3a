"""The rows that Spark serves to the driver's Python, where the socket was not ours at first."""

from __future__ import annotations

import socket
from typing import Any

from pyspark.sql import SparkSession

from pipelines.epoch.arrow_batches import arrow_batches


class Frame:
    """A Spark frame whose port a stranger, who says nothing, has found before us, some times."""

    def __init__(self, frame: Any, times: int) -> None:
        self._frame, self._times = frame, times
        self.strangers: list[socket.socket] = []
        self._jdf = self

    def collectAsArrowToPython(self) -> Any:  # noqa: N802
        served = self._frame._jdf.collectAsArrowToPython()
        if len(self.strangers) < self._times:
            self.strangers.append(socket.create_connection(("127.0.0.1", served[0])))
        return served


def test_rows_are_asked_for_anew_where_a_stranger_has_taken_their_socket(
    spark: SparkSession,
) -> None:
    frame: Any = Frame(spark.range(0, 5, 1, 2), times=1)
    rows = [row for batch in arrow_batches(frame) for row in batch.column(0).to_pylist()]
    assert rows == [0, 1, 2, 3, 4]
    assert len(frame.strangers) == 1
    frame.strangers[0].close()
