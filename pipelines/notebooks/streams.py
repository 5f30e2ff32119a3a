"""Streams of notebook 6: run to the end of what is there, and run a micro-batch a second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Store = Callable[["DataFrame", int], None]


def run_available(rows: DataFrame, store: Store, checkpoint: str) -> int:
    """Hands all that a stream has to `foreachBatch`, and stops. Output: how many micro-batches ran.

    Errors: Spark's StreamingQueryException.
    """
    writer = rows.writeStream.foreachBatch(store).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return len(query.recentProgress)


def forget_last_commit(checkpoint: str) -> int:
    """Puts a checkpoint back to where a crash leaves it: after the sink's write, before the note.

    Spark runs the last micro-batch again at the next start. Output: its number.
    Errors: FileNotFoundError if no micro-batch has ended.
    """
    notes = Path(checkpoint, "commits")
    numbers = [int(path.name) for path in notes.iterdir() if path.name.isdigit()]
    if not numbers:
        raise FileNotFoundError(f"{checkpoint}: no micro-batch has ended")

    last = max(numbers)
    (notes / str(last)).unlink()
    (notes / f".{last}.crc").unlink(missing_ok=True)
    return last


def append_plainly(rows: DataFrame, _batch_id: int, path: str) -> None:
    """Appends a micro-batch to a Delta table each time that Spark runs it."""
    rows.write.format("delta").mode("append").save(path)
