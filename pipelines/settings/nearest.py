"""The nearest known name to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence with the nearest known name; empty if none is near."""
    nearest = get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
