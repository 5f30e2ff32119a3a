"""A count with its noun, as sentences have it."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "", *, form: str = "") -> str:
    """Returns a count and its noun: 1 row, 2 rows, 1 half, 3 halves.

    Input: `plural`: by default the noun with an s. `form`: how the number is written.
    """
    return f"{count:{form}} {noun if count == 1 else plural or f'{noun}s'}"
