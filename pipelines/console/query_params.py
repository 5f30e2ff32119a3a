"""The values in the query of an address, or in the fields of a form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pipelines.errors import OperatorError
from pipelines.output import now_ms
from txlake.protocol import delay_levels_ms

ROWS: Final = 100
_ROWS_MAX: Final = 1_000


class BadQueryError(OperatorError):
    """The query cannot be understood."""


def text(query: Mapping[str, str], name: str) -> str | None:
    """Returns a value; None if it is missing or empty."""
    return query.get(name) or None


def limit(query: Mapping[str, str]) -> int:
    """Returns how many rows to show."""
    return number(query, "limit", ROWS, _ROWS_MAX)


def number(query: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """Returns a number from 1 to `maximum`."""
    value = text(query, name)
    if value is None:
        return default

    if not re.fullmatch("[1-9][0-9]{0,3}", value, re.ASCII) or int(value) > maximum:
        raise BadQueryError(f"{name} = {value!r}: a number from 1 to {maximum} is allowed")

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
