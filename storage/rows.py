"""Turn the decision's frames (instants in ms) into table rows (timestamps), and back."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

_MS = pa.timestamp("ms", tz="UTC")


def instant(ms: int) -> dt.datetime:
    """Returns an instant in ms as a UTC datetime."""
    return dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc) + dt.timedelta(
        milliseconds=ms % 1000
    )


def milliseconds(at: dt.datetime) -> int:
    """Returns a UTC datetime in ms."""
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(milliseconds=1)


def to_rows(frame: pa.Table, schema: pa.Schema, **values: Any) -> pa.Table:
    """Returns a frame as rows of `schema`; `values` fill columns that are equal in all rows.

    Units: an int64 in a timestamp's place is ms. A column that is in neither is null.
    """
    columns = []
    for wanted in schema:
        if wanted.name in values:
            column = pa.repeat(pa.scalar(values[wanted.name], wanted.type), frame.num_rows)
        elif wanted.name not in frame.column_names:
            column = pa.nulls(frame.num_rows, wanted.type)
        else:
            column = frame[wanted.name]
            if pa.types.is_timestamp(wanted.type) and pa.types.is_int64(column.type):
                column = column.cast(_MS)
            column = column.cast(wanted.type)
        columns.append(column)
    return pa.table(columns, schema=schema)


def to_frame(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns table rows as a frame of `schema`: its columns only, instants in ms."""
    columns = []
    for wanted in schema:
        column = rows[wanted.name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(_MS).cast(pa.int64())
        columns.append(column.cast(wanted.type))
    return pa.table(columns, schema=schema)
