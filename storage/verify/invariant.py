"""An invariant: a name, a statement, and the rows that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NAMED_MAX: Final = 20  # violating rows that are shown for each invariant
EPOCH_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Invariant:
    """A statement that has to hold for every row it looks at.

    `rows`: SQL over the frames of `frames.py`. It returns every row that is checked, with `epoch`,
    `problem` (null if the statement holds) and the columns that name the row. Their number is
    shown as "rows checked".
    """

    name: str
    statement: str
    rows: str


# The columns that name a half, a naming and a message.
HALF: Final = ("queue_id", "queue_offset")
NAMING: Final = ("queue_id", "op_queue_offset", "position")
MESSAGE: Final = ("source", "queue_id", "queue_offset")


def same(columns: Iterable[str], left: str, right: str) -> str:
    """Returns SQL that is true if two rows, by their aliases, are equal in these columns."""
    return " AND ".join(f"{left}.{name} = {right}.{name}" for name in columns)


def differing(pairs: dict[str, tuple[str, str]]) -> str:
    """Returns SQL that names the columns in which two sides differ; null if they are equal."""
    cases = (
        f"CASE WHEN {left} IS DISTINCT FROM {right} THEN '{name}' END"
        for name, (left, right) in pairs.items()
    )
    return f"nullif(concat_ws(', ', {', '.join(cases)}), '')"
