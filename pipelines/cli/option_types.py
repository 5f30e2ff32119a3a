"""Types of options: spans of time and sizes."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from txlake.protocol import FOREVER, delay_levels_ms

FOREVER_WORD: Final = "forever"
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Duration(click.ParamType[int]):
    """A span of time in ms, as `7d`; some can be `forever`, which is -1."""

    name = "span"

    def __init__(self, *, can_be_forever: bool = False) -> None:
        self._can_be_forever = can_be_forever

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Returns ms; -1 for ever."""
        if isinstance(value, int):
            return value
        if self._can_be_forever and value == FOREVER_WORD:
            return FOREVER

        try:
            (span_ms,) = delay_levels_ms(value)
        except ValueError:
            more = f", or {FOREVER_WORD}" if self._can_be_forever else ""
            self.fail(f"{value!r}: a number and one of the units s, m, h, d{more}")
        return span_ms


class ByteSize(click.ParamType[int]):
    """A size in bytes, as `10GiB` or `forever`."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Returns bytes; -1 without a limit."""
        if value == FOREVER_WORD:
            return FOREVER
        match = re.fullmatch(r"([1-9][0-9]{0,14})(|KiB|MiB|GiB|TiB)", value)
        if match is None:
            self.fail(f"{value!r}: bytes, or a number with KiB, MiB, GiB or TiB, or {FOREVER_WORD}")
        return int(match[1]) * _UNITS[match[2]]
