"""The values in the query of an address, or in the fields of a form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pipelines.errors import OperatorError
from pipelines.output import now_ms
from txlake.protocol import FOREVER, delay_levels_ms

_FOREVER_WORD: Final = "forever"
_SIZES: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
ROWS: Final = 50
ROWS_MAX: Final = 100  # in one page: 150 KB with its style
EXPORTED_MAX: Final = 1_000


class BadQueryError(OperatorError):
    """The query cannot be understood."""


def text(query: Mapping[str, str], name: str) -> str | None:
    """Returns a value; None if it is missing or empty."""
    return query.get(name) or None


def limit(query: Mapping[str, str]) -> int:
    """Returns how many rows to show, or to export."""
    if text(query, "format") is not None:
        return number(query, "limit", EXPORTED_MAX, EXPORTED_MAX)
    return number(query, "limit", ROWS, ROWS_MAX)


def number(query: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """Returns a number from 1 to `maximum`."""
    value = text(query, name)
    if value is None:
        return default

    if not re.fullmatch("[1-9][0-9]{0,3}", value, re.ASCII) or int(value) > maximum:
        raise BadQueryError(f"{name} = {value!r}: a number from 1 to {maximum} is allowed")

    return int(value)


def offset(query: Mapping[str, str], name: str) -> int | None:
    """Returns a queue's number or an offset; None if it is missing."""
    value = text(query, name)
    if value is None:
        return None

    if not re.fullmatch("[0-9]{1,18}", value, re.ASCII):
        raise BadQueryError(f"{name} = {value!r}: a number from 0 is allowed")

    return int(value)


def parse_age(query: Mapping[str, str], name: str) -> int | None:
    """Returns the instant that a span before now, as `1h`, names; ms. None if it is missing."""
    value = text(query, name)
    if value is None:
        return None
    try:
        (span_ms,) = delay_levels_ms(value)
    except ValueError as error:
        raise BadQueryError(
            f"{name} = {value!r}: a number and one of the units s, m, h, d is allowed"
        ) from error

    return max(0, now_ms() - span_ms)


def retention(query: Mapping[str, str], name: str) -> int | None:
    """Returns a span in ms, -1 for ever; None if it is missing."""
    value = text(query, name)
    if value is None:
        return None
    if value == _FOREVER_WORD:
        return FOREVER
    try:
        (span_ms,) = delay_levels_ms(value)
    except ValueError as error:
        raise BadQueryError(
            f"{name} = {value!r}: 36h, 7d or another span is allowed, or {_FOREVER_WORD}"
        ) from error
    return span_ms


def size(query: Mapping[str, str], name: str) -> int | None:
    """Returns a number of bytes, -1 without a limit; None if it is missing."""
    value = text(query, name)
    if value is None:
        return None
    if value == _FOREVER_WORD:
        return FOREVER

    match = re.fullmatch(r"([1-9][0-9]{0,14})(|KiB|MiB|GiB|TiB)", value, re.ASCII)
    if match is None:
        raise BadQueryError(
            f"{name} = {value!r}: bytes or a number with KiB, MiB, GiB or TiB is allowed, or "
            f"{_FOREVER_WORD}"
        )
    return int(match[1]) * _SIZES[match[2]]
