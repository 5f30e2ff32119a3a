"""Rows of the lake as cells: values of all types for people and for programs."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from pipelines.errors import OperatorError
from pipelines.output import CSV, TABLE, Row, instant, is_instant

# A table cuts a longer text; the other formats have it whole.
_CHARACTERS_MAX: Final = 120
_MS: Final = pa.timestamp("ms", tz="UTC")


def plain_rows(rows: pa.Table, output: str, form: str = "text") -> tuple[list[str], list[Row]]:
    """Returns columns and rows for `print_records`: instants of `_at` in ms.

    Two columns of one name become `name` and `name_2`.
    Input: `form` of bytes: `text`, with invalid UTF-8 as `\\x` and two digits; `json`: the
    value, or text if it is not JSON; `hex`.
    Errors: OperatorError for an instant that no calendar has.
    """
    names = _distinct_names(rows.column_names)
    format_bytes = {"text": _text, "json": _json, "hex": _hex}[form]
    columns: list[list[Any]] = []

    for name, column in zip(names, rows.columns, strict=True):
        is_timestamp = pa.types.is_timestamp(column.type)
        try:
            values = _instants(name, column) if is_timestamp else column.to_pylist()
        except (ValueError, OverflowError) as error:
            raise OperatorError(f"column {name}: no calendar has this instant ({error})") from error
        columns.append([_cell(value, output, format_bytes) for value in values])

    return names, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _distinct_names(names: Sequence[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        count = 1
        while (name if count == 1 else f"{name}_{count}") in distinct:
            count += 1
        distinct.append(name if count == 1 else f"{name}_{count}")
    return distinct


def _instants(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Returns timestamps in ms if the column's name is one of an instant, else as text."""
    values: list[int | None] = column.cast(_MS, safe=False).cast(pa.int64()).to_pylist()
    texts = [None if value is None else instant(value) for value in values]
    return values if is_instant(name) else texts


def _cell(value: Any, output: str, format_bytes: Callable[[bytes], Any]) -> Any:
    plain = _plain(value, format_bytes)
    if output in (TABLE, CSV) and isinstance(plain, list | dict):
        plain = json.dumps(plain, ensure_ascii=False)
    if output == TABLE and isinstance(plain, str) and len(plain) > _CHARACTERS_MAX:
        plain = plain[: _CHARACTERS_MAX - 1] + "…"
    return plain


def _plain(value: Any, format_bytes: Callable[[bytes], Any]) -> Any:
    """Returns a value for JSON."""
    if isinstance(value, bytes):
        return format_bytes(value)
    if isinstance(value, dict):
        return {str(key): _plain(inner, format_bytes) for key, inner in value.items()}

    if isinstance(value, list):
        # Arrow returns a map as pairs.
        if value and all(isinstance(inner, tuple) for inner in value):
            return {str(key): _plain(inner, format_bytes) for key, inner in value}
        return [_plain(inner, format_bytes) for inner in value]

    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _hex(value: bytes) -> str:
    return value.hex()


def _json(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return _text(value)
