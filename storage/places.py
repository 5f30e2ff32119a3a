"""One number for a place in a Kafka topic: queue and offset."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from storage.row_groups import OFFSET_BITS


def coordinates(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return one number a coordinate: offsets are far below 2^44, partitions below 2^19."""
    bits = pa.scalar(OFFSET_BITS, pa.int64())
    queue = pc.shift_left(rows.column("queue_id").cast(pa.int64()), bits)
    return pc.add(queue, rows.column("queue_offset"))
