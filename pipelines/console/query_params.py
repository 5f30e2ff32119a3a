"""The values in the query of an address, or in the fields of a form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pipelines.amounts import parse_size, parse_span
from pipelines.errors import OperatorError
from pipelines.output import now_ms

ROWS: Final = 50
ROWS_MAX: Final = 100  # in one page: 150 KB with its style
EXPORTED_MAX: Final = 1_000
TARGETS_MAX: Final = 100  # of one action


class BadQueryError(OperatorError):
    """The query cannot be understood."""


def text(query: Mapping[str, str], name: str) -> str | None:
    """Returns a value; None if it is missing or empty."""
    return query.get(name) or None


def limit(query: Mapping[str, str], shown: int = ROWS, shown_max: int = ROWS_MAX) -> int:
    """Returns how many rows to show, or to export."""
    if text(query, "format") is not None:
        return number(query, "limit", EXPORTED_MAX, EXPORTED_MAX)
    return number(query, "limit", shown, shown_max)


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
    span_ms = _parsed(query, name, parse_span)
    return None if span_ms is None else max(0, now_ms() - span_ms)


def retention(query: Mapping[str, str], name: str) -> int | None:
    """Returns a span in ms, -1 for ever; None if it is missing."""
    return _parsed(query, name, partial(parse_span, can_be_forever=True))


def size(query: Mapping[str, str], name: str) -> int | None:
    """Returns a number of bytes, -1 without a limit; None if it is missing."""
    return _parsed(query, name, parse_size)


def _parsed(query: Mapping[str, str], name: str, parse: Callable[[str], int]) -> int | None:
    value = text(query, name)
    if value is None:
        return None

    try:
        return parse(value)
    except ValueError as error:
        raise BadQueryError(f"{name} = {value!r}: allowed is {error}") from error
