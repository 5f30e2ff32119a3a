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
from pipelines.output import CSV, LAST_MS, TABLE, Row, instant, is_instant

# A table cuts a longer text; the other formats have it whole.
_CHARACTERS_MAX: Final = 120
# Lists in lists of a body that is shown as JSON: writing it needs Python's stack.
_DEPTH_MAX: Final = 200
_MS: Final = pa.timestamp("ms", tz="UTC")


def plain_rows(rows: pa.Table, output: str, form: str = "text") -> tuple[list[str], list[Row]]:
    """Returns columns and rows for `print_records`: instants of `_at` in ms.

    Two columns of one name become `name` and `name_2`.
    Input: `form` of bytes: `text`, with invalid UTF-8 as `\\x` and two digits; `json`: the
    value, or text if it is no proper JSON; `hex`.
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
        columns.append([_cell(value, column.type, output, format_bytes) for value in values])

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
    if max((value for value in values if value is not None), default=0) > LAST_MS:
        raise ValueError("it is after the year 9999")

    texts = [None if value is None else instant(value) for value in values]
    return values if is_instant(name) else texts


def _cell(value: Any, kind: pa.DataType, output: str, format_bytes: Callable[[bytes], Any]) -> Any:
    plain = _plain(value, kind, format_bytes)
    if output in (TABLE, CSV) and isinstance(plain, list | dict):
        plain = json.dumps(plain, ensure_ascii=False)
    if output == TABLE and isinstance(plain, str) and len(plain) > _CHARACTERS_MAX:
        plain = plain[: _CHARACTERS_MAX - 1] + "…"
    return plain


def _plain(value: Any, kind: pa.DataType, format_bytes: Callable[[bytes], Any]) -> Any:
    """Returns a value for JSON. Input: its type, or null where that is not known."""
    if isinstance(value, bytes):
        return format_bytes(value)
    if isinstance(value, dict):
        fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        return {
            str(key): _plain(inner, fields.get(key, pa.null()), format_bytes)
            for key, inner in value.items()
        }

    if isinstance(value, list):
        # Arrow returns a map as pairs, an empty one as an empty list.
        if pa.types.is_map(kind):
            return {str(key): _plain(inner, kind.item_type, format_bytes) for key, inner in value}
        if value and all(isinstance(inner, tuple) for inner in value):
            return {str(key): _plain(inner, pa.null(), format_bytes) for key, inner in value}
        inner_kind = getattr(kind, "value_type", pa.null())
        return [_plain(inner, inner_kind, format_bytes) for inner in value]

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
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return _text(value)
    return parsed if _is_proper(parsed) else _text(value)


def _is_proper(parsed: Any) -> bool:
    """Returns whether a value that Python has parsed can be written as JSON that all can read.

    Python also takes NaN, numbers beyond all floats, and halves of surrogate pairs.
    """
    level = [parsed]
    depth = 0
    while level and depth <= _DEPTH_MAX:
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                inner += value
            elif not _is_in_json(value):
                return False
        level = inner
        depth += 1
    return not level


def _is_in_json(value: Any) -> bool:
    """Returns whether JSON has a text, a number or a word."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, str):
        return True

    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
