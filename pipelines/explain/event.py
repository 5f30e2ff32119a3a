"""One line of a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.explain.rows import Row
from pipelines.explain.units import Unit

# The phases of an epoch: what came, what an operator commanded, what was decided.
LANDED, COMMANDED, CONFLICT, ENDED, PLACED, ASKED = range(6)


@dataclass(frozen=True)
class Event:
    """One line of a timeline. Units: `at` ms.

    `is_committed`: whether its epoch is. `detail` has the row's own values.
    """

    at: int
    epoch: int
    kind: str
    text: str
    is_committed: bool = True
    detail: dict[str, Any] = field(default_factory=dict)


Part = tuple[Event, int]  # with its phase within the epoch


def event(
    unit: Unit, row: Row, at: int, phase: int, kind: str, text: str, columns: Sequence[str] = (),
    **more: Any,
) -> Part:  # fmt: skip
    """Returns a row's line and its phase; the text says so if the epoch is not committed yet.

    Input: `columns`: those of the row that are its detail, with `more`.
    """
    is_committed = unit.is_settled(row)
    if not is_committed:
        text += f" (epoch {row['epoch']}, not committed yet)"
    detail = {name: row[name] for name in columns} | more
    return Event(at, row["epoch"], kind, text, is_committed, detail), phase


def place(unit: Unit, queue_offset: int) -> str:
    """Returns the name of one of the unit's messages."""
    return f"{unit.source} {unit.queue_id}-{queue_offset}"
