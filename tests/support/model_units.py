"""What the model's halves belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
OUTCOME_OF = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}


@dataclass
class Unit:
    """What ends together: one half, or a set."""

    queue_id: int
    first: Row
    size: int
    stored_at: int
    age_from_at: int
    key: tuple[Any, ...] | None = None  # of a set
    members: dict[int, Row] = field(default_factory=dict)  # by TRAN_SEQ
    arm: int = 0
    check_times: int = 0
    unacknowledged: int = 0  # attempts in a row
    checked_at: int | None = None
    answer: tuple[int, int] | None = None  # op offset, stored_at
    discard_cause: str | None = None
    end: Row | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.members) == self.size

    @property
    def halves(self) -> list[Row]:
        return sorted(self.members.values(), key=lambda half: half["queue_offset"])

    def arm_again(self, at: int) -> None:
        """Let it wait as if it were stored at this instant, without attempts."""
        self.discard_cause = None
        self.arm = self.arm + 1
        self.stored_at = self.age_from_at = at
        self.check_times = 0
        self.checked_at = None
        self.unacknowledged = 0


def coordinate(row: Row) -> tuple[int, int]:
    return row["queue_id"], row["queue_offset"]
