"""What a setting's value can be: a test of it, and the same in words.

Each function returns the metadata of a dataclass's field: `is_allowed`, the test, and `allowed`,
the words of the sentence that refuses a value.
"""

from __future__ import annotations

import re
from typing import Any

from txlake.protocol import FOREVER, matches

LONG_MAX = 2**63 - 1
# 31,700 years: longer than any real span, and an instant so far ahead still fits a column.
SPAN_MS_MAX = 10**15
_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.%]+\]", re.ASCII)


def _limits(low: int, high: int) -> str:
    """Returns the limits of a whole number in words."""
    if high == LONG_MAX:
        return f"a whole number >= {low}"
    return f"a whole number {low} .. {'10^15' if high == SPAN_MS_MAX else high}"


def whole(low: int, high: int = LONG_MAX) -> dict[str, Any]:
    """A whole number within limits."""
    return {
        "is_allowed": lambda value: type(value) is int and low <= value <= high,
        "allowed": _limits(low, high),
    }


def span_ms(low: int) -> dict[str, Any]:
    """A span of time in ms."""
    return whole(low, SPAN_MS_MAX)


def whole_or_forever(high: int) -> dict[str, Any]:
    """A whole number from 1 on, or -1: forever, no limit."""
    return {
        "is_allowed": lambda value: value == FOREVER or 1 <= value <= high,
        "allowed": f"{_limits(1, high)}, or -1",
    }


def name(pattern: str) -> dict[str, Any]:
    """A text that a pattern matches as a whole."""
    return {
        "is_allowed": lambda value: matches(pattern, value),
        "allowed": f"text like {pattern}",
    }


def one_of(*values: str) -> dict[str, Any]:
    """One of some texts."""
    return {"is_allowed": lambda value: value in values, "allowed": " or ".join(map(repr, values))}


def not_empty() -> dict[str, Any]:
    """A text that is not empty."""
    return {"is_allowed": bool, "allowed": "text that is not empty"}


def are_servers(text: str) -> bool:
    """Returns whether a text is a list of Kafka's servers: host:port, comma separated."""
    return all(_is_server(server.strip()) for server in text.split(","))


def _is_server(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = bool(re.fullmatch("[0-9]{1,5}", port)) and 0 < int(port) < 65_536

    return is_port and _HOST.fullmatch(host) is not None
