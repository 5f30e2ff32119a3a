"""Turn the decision's frames (instants in ms) into table rows (timestamps), and back."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

_MS = pa.timestamp("ms", tz="UTC")

# The first and the last ms of the years 1 to 9999, which are all that a datetime has.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def instant(ms: int) -> dt.datetime:
    """Returns an instant in ms as a UTC datetime; beyond those there are, the first or the last.

    A setting can be a span of 10^15 ms: so long ago nothing was, and so late nothing will be.
    """
    ms = max(_FIRST_MS, min(ms, _LAST_MS))
    second = dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc)
    return second + dt.timedelta(milliseconds=ms % 1000)


def milliseconds(at: dt.datetime) -> int:
    """Returns a UTC datetime in ms."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return (at - epoch) // dt.timedelta(milliseconds=1)


def to_rows(frame: pa.Table, schema: pa.Schema, **values: Any) -> pa.Table:
    """Returns a frame as rows of `schema`; `values` fill columns that are equal in all rows.

    A column that is in neither is null. Units: an int64 for a timestamp column is ms.
    """
    columns = []

    for field in schema:
        if field.name in values:
            column = pa.repeat(pa.scalar(values[field.name], field.type), frame.num_rows)
        elif field.name not in frame.column_names:
            column = pa.nulls(frame.num_rows, field.type)
        else:
            column = _cast(field.type, frame[field.name])
        columns.append(column)

    return pa.table(columns, schema=schema)


def to_frame(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns table rows as a frame of `schema`: its columns only, instants in ms."""
    return pa.table([_cast(field.type, rows[field.name]) for field in schema], schema=schema)


def _cast(to_type: pa.DataType, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as another type; a number that is or becomes an instant is in ms."""
    if pa.types.is_timestamp(to_type) != pa.types.is_timestamp(column.type):
        column = column.cast(_MS)
    return column.cast(to_type)
