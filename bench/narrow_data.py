"""The narrow rows that the tasks of a very large epoch would hand back, made without Kafka."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.tasks.arrow_bytes import as_bytes
from storage.tasks.land import LANDED
from storage.wire.decode import RECORDS
from storage.wire.record_kinds import HALF, OP
from txlake import protocol as p

QUEUES = 4
AT_MS = 1_767_225_600_000
_PORTION_ROWS = 16_384  # as a task hands them back
# Of so many operations one rolls back, of so many transactions one has no end.
_ROLLED_BACK, _UNANSWERED = 50, 100
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


def write_narrow_rows(path: Path, transactions: int, ends_per_operation: int) -> int:
    """Write what the tasks of an epoch hand back, as an Arrow stream. Output: narrow rows."""
    each, rows = transactions // QUEUES, 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, LANDED) as stream:
        for queue in range(QUEUES):
            for start in range(0, each, _PORTION_ROWS):
                halves = _halves(queue, np.arange(start, min(each, start + _PORTION_ROWS)))
                rows += halves.num_rows
                stream.write_batch(_landed(halves))
        for queue in range(QUEUES):
            answered = np.arange(each)
            answered = answered[answered % _UNANSWERED != 1]
            portion = _PORTION_ROWS * ends_per_operation
            for start in range(0, len(answered), portion):
                first = start // ends_per_operation
                ended = answered[start : start + portion]
                operations = _operations(queue, first, ended, ends_per_operation)
                rows += operations.num_rows
                stream.write_batch(_landed(operations))
    return rows


def _halves(queue: int, offsets: np.ndarray) -> pa.Table:
    return _records(
        HALF, queue, offsets, real_topic=pa.repeat("orders", len(offsets)),
        transaction_id=_transaction_ids(queue, offsets),
    )  # fmt: skip


def _operations(queue: int, first: int, ended: np.ndarray, each: int) -> pa.Table:
    """Return operation records that end some halves, so many each."""
    starts = np.append(np.arange(0, len(ended), each), len(ended)).astype(np.int32)
    numbers = first + np.arange(len(starts) - 1)
    names = pa.ListArray.from_arrays(starts, pa.array(ended).cast(pa.string()))
    is_back = pa.array(numbers % _ROLLED_BACK == 0)
    return _records(
        OP, queue, numbers,
        decision=pc.if_else(is_back, p.ROLLBACK, p.COMMIT),
        half_offsets=pa.ListArray.from_arrays(starts, pa.array(ended)),
        transaction_ids=pa.ListArray.from_arrays(starts, _transaction_ids(queue, ended)),
        from_check=pa.repeat(False, len(numbers)),
        body=pc.binary_join(names, ",").cast(pa.binary()),
    )  # fmt: skip


def _records(kind: str, queue: int, offsets: np.ndarray, **columns: pa.Array) -> pa.Table:
    count = len(offsets)
    known = {
        "kind": pa.repeat(kind, count), "queue_id": pa.repeat(pa.scalar(queue, pa.int32()), count),
        "queue_offset": pa.array(offsets), "producer_group": pa.repeat("shop", count),
        "stored_at": pa.array(np.full(count, AT_MS * 1000)), **columns,
    }  # fmt: skip
    return pa.table(
        [known[f.name].cast(f.type) if f.name in known else pa.nulls(count, f.type)
         for f in RECORDS],
        schema=RECORDS,
    )  # fmt: skip


def _transaction_ids(queue: int, offsets: np.ndarray) -> pa.Array:
    """Return ids of 32 hexadecimal digits, as the SDK's: half of them equal in neighbours."""
    high = np.full(len(offsets), AT_MS << 16 | queue, np.uint64)
    low = offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = np.concatenate(
        [(part[:, None] >> shifts & np.uint64(15)).astype(np.uint8) for part in (high, low)], axis=1
    )
    starts = np.arange(0, 32 * len(offsets) + 1, 32, dtype=np.int32)
    text = np.ascontiguousarray(_HEXADECIMAL[digits])
    return pa.StringArray.from_buffers(len(offsets), pa.py_buffer(starts), pa.py_buffer(text))


def _landed(narrow: pa.Table) -> pa.RecordBatch:
    values = [pa.array([as_bytes(narrow)], pa.binary()), pa.array(["{}"])]
    return pa.RecordBatch.from_arrays(values, schema=LANDED)
