"""The texts of an application's errors and answers, whose own code can fail, too."""

from __future__ import annotations

from collections.abc import Callable

_VALUE_CHARACTERS_MAX = 200


def error_text(error: BaseException, caught: type[BaseException] = Exception) -> str:
    """Returns the class of an error and what it says, if it can say it.

    Input: `caught`: what its `__str__` may raise.
    """
    return f"{type(error).__name__}: {_text(str, error, caught)}"


def value_text(value: object, caught: type[BaseException] = Exception) -> str:
    """Returns the beginning of a value's `repr`. Input: `caught`: what that may raise."""
    return _text(repr, value, caught)[:_VALUE_CHARACTERS_MAX]


def _text(make: Callable[[object], str], value: object, caught: type[BaseException]) -> str:
    """Returns a text that can be stored as UTF-8."""
    try:
        return make(value).encode("utf-8", "replace").decode()
    except caught as failure:
        return f"<{type(value).__name__} without a text: {type(failure).__name__}>"
