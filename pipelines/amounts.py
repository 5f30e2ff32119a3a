"""Spans of time, instants and sizes, as people write them in options, addresses and forms."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from txlake.protocol import FOREVER, delay_levels_ms

FOREVER_WORD: Final = "forever"
_SIZE_MAX: Final = 10**18 - 1  # 18 digits, as a target of ALTER_TOPIC has
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_span(text: str, *, can_be_forever: bool = False) -> int:
    """Returns a span as `7d` in ms; some can be `forever`, which is -1.

    Errors: ValueError that says what is allowed.
    """
    if can_be_forever and text == FOREVER_WORD:
        return FOREVER

    try:
        (span_ms,) = delay_levels_ms(text)
    except ValueError:
        more = f", or {FOREVER_WORD}" if can_be_forever else ""
        raise ValueError(f"a number and one of the units s, m, h, d{more}") from None
    return span_ms


def parse_size(text: str) -> int:
    """Returns a size as `10GiB` in bytes; -1 for `forever`, no limit.

    Errors: ValueError that says what is allowed.
    """
    if text == FOREVER_WORD:
        return FOREVER

    match = re.fullmatch(r"([1-9][0-9]{0,14})(|KiB|MiB|GiB|TiB)", text, re.ASCII)
    if match is None:
        raise ValueError(f"bytes, or a number with KiB, MiB, GiB or TiB, or {FOREVER_WORD}")

    size = int(match[1]) * _UNITS[match[2]]
    if size > _SIZE_MAX:
        raise ValueError(f"at most {_SIZE_MAX >> 40}TiB, or {FOREVER_WORD}")
    return size


def parse_instant(text: str) -> dt.datetime:
    """Returns an instant as `2026-01-31T12:00Z`; without a time zone if the text has none.

    Errors: ValueError, also for one that is outside of all years in UTC.
    """
    at = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 cannot read the Z
    if at.tzinfo is None:
        return at

    try:
        at.astimezone(dt.timezone.utc)
    except OverflowError:
        raise ValueError(f"{text}: an instant of the years 1 to 9999 in UTC") from None
    return at
