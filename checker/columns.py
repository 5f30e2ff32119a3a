"""Match rows of frames by their places and choose values, column by column.

A look-up here is one pass in C over a column. The same as a join in SQL carries all columns of
both sides along, and is planned anew each time: for 100,000 transactions that is most of the
processor time of a decision (DECISIONS.md 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_OFFSET_BITS = 44
Mask = Any  # numpy array of bool; numpy's generics say more than they help
Numbers = Any  # numpy array of int64


def truth(values: pa.Array | pa.ChunkedArray) -> Mask:
    """Return a boolean column as a numpy array, null as false."""
    if isinstance(values, pa.ChunkedArray):
        return pc.fill_null(values, False).to_numpy()
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def longs(values: pa.ChunkedArray, null: int = -1) -> Numbers:
    """Return a column of integers as a numpy array, with `null` in the place of nulls."""
    return pc.fill_null(values, null).to_numpy().astype(np.int64, copy=False)


def places(rows: pa.Table, offset: str = "queue_offset") -> Numbers:
    """Return one number for queue and offset of each row; -1, which is no place, where it has none.

    Kafka's offsets stay far below 2^44 and partitions below 2^19. What an operation names may be
    any number: one that is larger is no place either.
    """
    offsets = longs(rows[offset])
    numbers = (longs(rows["queue_id"]) << _OFFSET_BITS) | offsets
    numbers[(offsets >> _OFFSET_BITS) != 0] = -1
    return numbers


def find(wanted: Numbers, among: Numbers) -> Numbers:
    """Return for each wanted number where it stands first among the others, -1 where nowhere."""
    found = pc.index_in(pa.array(wanted), value_set=pa.array(among))
    return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def take(rows: pa.Table, at: Numbers) -> pa.Table:
    """Return the rows at these positions; a row of nulls for -1."""
    return rows.combine_chunks().take(pa.array(at, mask=at < 0))


def frame(schema: pa.Schema, rows: pa.Table, **values: Any) -> pa.Table:
    """Return a frame of a schema: its columns as `rows` has them, but those that are named.

    A value that is no column stands in every row.
    """
    columns = []
    for field in schema:
        value = values[field.name] if field.name in values else rows[field.name]
        is_column = isinstance(value, (pa.Array, pa.ChunkedArray))
        columns.append(
            value if is_column else pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        )
    return pa.table(columns, schema=schema)


def choose(cases: Sequence[tuple[Mask, str | None]], otherwise: str | None = None) -> pa.Array:
    """Return for each row the text of the first case that holds."""
    texts = pa.array([*(text for _, text in cases), otherwise], pa.string())
    codes = np.select([mask for mask, _ in cases], list(range(len(cases))), len(cases))
    return texts.take(pa.array(codes))


def same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    """Say where two columns are equal; what is null on either side equals everything."""
    return truth(pc.fill_null(pc.equal(left, right), True))
