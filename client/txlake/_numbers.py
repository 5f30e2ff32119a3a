"""Checks of the numbers that a caller passes: each is refused at once, and named."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Final

INT_MAX: Final = 2**31 - 1


def require_whole(name: str, value: object, minimum: int, maximum: int = INT_MAX) -> None:
    """Checks that a value is a whole number within limits. Errors: ValueError."""
    if not is_whole(value, minimum, maximum):
        raise ValueError(f"{name} {value!r}: {minimum} or more, up to {maximum}")


def is_whole(value: object, minimum: int, maximum: int = INT_MAX) -> bool:
    """Returns whether a value is a whole number within limits."""
    return is_whole_number(value) and minimum <= value <= maximum  # type: ignore[operator]


def is_whole_number(value: object) -> bool:
    """Returns whether a value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_seconds(name: str, value: object) -> None:
    """Checks that a value says how long to wait; without end is allowed. Errors: ValueError."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not (value == math.inf or -INT_MAX <= value <= INT_MAX):  # type: ignore[operator]
        raise ValueError(f"{name} {value!r}: a number of seconds")
