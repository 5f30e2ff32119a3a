"""What an invariant is: a name, a sentence, and the rows it looks at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Invariant:
    """State one thing that is true of every row it looks at.

    `rows`: SQL over the frames of `frames.py`. It gives every row that is looked at (their number
    is the proof number) with `epoch`, `problem` (null: the row is as it must be), and the columns
    that name the row.
    """

    name: str
    says: str
    rows: str


def differing(pairs: dict[str, tuple[str, str]]) -> str:
    """Return SQL that names the columns in which two sides differ; null when they are equal."""
    cases = (
        f"CASE WHEN {left} IS DISTINCT FROM {right} THEN '{name}' END"
        for name, (left, right) in pairs.items()
    )
    return f"nullif(concat_ws(', ', {', '.join(cases)}), '')"
