"""The rows that Spark serves to the driver's Python, where the socket was not ours at first."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

from pyspark.sql import SparkSession

from pipelines.epoch.arrow_batches import arrow_batches


class Frame:
    """A Spark frame whose port a stranger, who says nothing, has found before us the first time."""

    def __init__(self, frame: Any, open_until: ExitStack) -> None:
        self._frame, self._open_until = frame, open_until
        self.times = 0
        self._jdf = self

    def collectAsArrowToPython(self) -> Any:  # noqa: N802
        served = self._frame._jdf.collectAsArrowToPython()
        self.times += 1
        if self.times == 1:
            self._open_until.enter_context(socket.create_connection(("127.0.0.1", served[0])))
        return served


def test_rows_are_asked_for_anew_where_a_stranger_has_taken_their_socket(
    spark: SparkSession,
) -> None:
    with ExitStack() as open_until:
        frame: Any = Frame(spark.range(0, 5, 1, 2), open_until)
        rows = [row for batch in arrow_batches(frame) for row in batch.column(0).to_pylist()]
    assert frame.times > 1
    assert sorted(rows) == [0, 1, 2, 3, 4]  # a batch comes when it is ready
