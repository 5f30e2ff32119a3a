"""One line of a timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipelines.explain.rows import Row
from pipelines.explain.units import Unit

# Within an epoch: what came, what an operator commanded, what was decided, in this order.
LANDED, COMMANDED, CONFLICT, ENDED, PLACED, ASKED = range(6)


@dataclass(frozen=True)
class Event:
    """One line of a timeline. Units: `at` ms.

    `is_committed`: its epoch is; else the row is early. `detail` has the row's own values.
    """

    at: int
    epoch: int
    kind: str
    text: str
    is_committed: bool = True
    detail: dict[str, Any] = field(default_factory=dict)


Part = tuple[Event, int]  # with its phase within the epoch


def event(unit: Unit, row: Row, at: int, phase: int, kind: str, text: str, **detail: Any) -> Part:
    """Make a line from a row, marked when its epoch is not committed."""
    is_committed = unit.is_settled(row)
    if not is_committed:
        text += f" (epoch {row['epoch']}, not committed yet)"
    return Event(at, row["epoch"], kind, text, is_committed, detail), phase


def place(unit: Unit, queue_offset: int) -> str:
    """Name one of the unit's messages."""
    return f"{unit.source} {unit.queue_id}-{queue_offset}"
