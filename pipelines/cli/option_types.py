"""Types of options: spans of time and sizes."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from pipelines.amounts import parse_size, parse_span


class Duration(click.ParamType[int]):
    """A span of time in ms, as `7d`; some can be `forever`, which is -1."""

    name = "span"

    def __init__(self, *, can_be_forever: bool = False) -> None:
        self._can_be_forever = can_be_forever

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Returns ms; -1 for ever."""
        if isinstance(value, int):
            return value
        try:
            return parse_span(value, can_be_forever=self._can_be_forever)
        except ValueError as error:
            self.fail(f"{value!r}: {error}")


class NamedPath(click.Path):
    """A path that names something: an empty text would be the current folder."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Returns the path, as `click.Path` does."""
        if not str(value):
            self.fail("'' names no file and no folder", param, ctx)
        return super().convert(value, param, ctx)


# A year: no wait is longer, and `time.sleep` takes it.
_SECONDS_MAX: Final = 366 * 86_400


class Seconds(click.FloatRange):
    """A span of time in seconds, 0 or `minimum` or more, that has an end."""

    def __init__(self, minimum: float = 0) -> None:
        super().__init__(min=minimum, max=_SECONDS_MAX)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Returns seconds."""
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r}: a number of seconds", param, ctx)
        return float(seconds)


class ByteSize(click.ParamType[int]):
    """A size in bytes, as `10GiB` or `forever`."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Returns bytes; -1 without a limit."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}")
