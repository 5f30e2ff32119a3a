"""Look-ups of rows by their keys, and choices of values, column by column.

A look-up here is one pass in C over a column. A join in SQL carries all columns of both sides
along, and is planned anew each time: for 100,000 transactions that is most of the processor time of
a decision (DECISIONS.md 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = Any  # numpy array of bool; numpy's generic types make signatures long
Numbers = Any  # numpy array of int64
# The most descents with which numbers are searched, not hashed. Measured alone, searching a few
# runs takes half the time of hashing, fifty runs a third more; in the job, where hash tables take
# fresh memory, hashing takes three times as long (DECISIONS.md 15).
_DESCENTS_MAX = 100


def to_mask(values: pa.Array | pa.ChunkedArray) -> Mask:
    """Returns a boolean column as a numpy array, null as false."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def to_int64(values: pa.ChunkedArray, null: int = -1) -> Numbers:
    """Returns a column of integers as a numpy array, with the number `null` for nulls."""
    return pc.fill_null(values, null).to_numpy().astype(np.int64, copy=False)


def index_of(wanted: Numbers, among: Numbers) -> Numbers:
    """Returns for each wanted number the index at which it stands first among the others, or -1.

    Keys mostly stand in order, or in a few ordered runs: they are searched. Numbers without an
    order are hashed.
    """
    if not len(among):
        return np.full(len(wanted), -1, np.int64)

    descents = _descents(among)
    if _descents(wanted) + descents > _DESCENTS_MAX:
        indices = pc.index_in(pa.array(wanted), value_set=pa.array(among))
        return pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)

    order = among.argsort(kind="stable") if descents else None
    ordered = among if order is None else among[order]

    at = ordered.searchsorted(wanted)
    at[at == len(ordered)] = 0
    is_equal = ordered[at] == wanted

    return np.where(is_equal, at if order is None else order[at], -1)


def _descents(numbers: Numbers) -> int:
    """Returns how often a number is less than the one before it."""
    return int(np.count_nonzero(numbers[1:] < numbers[:-1]))


def filter_rows(rows: pa.Table, is_wanted: Mask) -> pa.Table:
    """Returns the wanted rows; if all are wanted, the frame itself, without a copy."""
    return rows if is_wanted.all() else rows.filter(pa.array(is_wanted))


def take(rows: pa.Table, at: Numbers) -> pa.Table:
    """Returns the rows at these indices; a row of nulls for -1."""
    return rows.combine_chunks().take(pa.array(at, mask=at < 0))


def build_frame(schema: pa.Schema, rows: pa.Table, **values: Any) -> pa.Table:
    """Returns a frame of a schema: columns of `rows`, and `values` for the columns that they name.

    A value that is not a column stands in every row.
    """
    columns = []
    for field in schema:
        column = values[field.name] if field.name in values else rows[field.name]
        if not isinstance(column, (pa.Array, pa.ChunkedArray)):
            column = pa.repeat(pa.scalar(column, field.type), rows.num_rows)
        columns.append(column)

    return pa.table(columns, schema=schema)


def case_when(cases: Sequence[tuple[Mask, str | None]], otherwise: str | None = None) -> pa.Array:
    """Returns for each row the text of the first case that holds."""
    texts = pa.array([*(text for _, text in cases), otherwise], pa.string())

    codes = np.select([mask for mask, _ in cases], list(range(len(cases))), len(cases))
    return texts.take(pa.array(codes))


def equal_or_null(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    """Returns for each row whether two columns are equal; a null equals every value."""
    return to_mask(pc.fill_null(pc.equal(left, right), True))
