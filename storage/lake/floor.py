"""The floor of a lake: below it nothing decides any more, and in the end it is deleted.

It stands at an epoch that took a snapshot of the state, `[lake] retention_ms` ago, so every epoch
above it can be restored and run again. Such an epoch has looked at halves down to the floor of its
own time: those stay as long, so that a replay finds what the job found. So rows are deleted up to
the floor that the floor's epoch itself had, when they are between one and two `retention_ms` old
and an interval of snapshots. A floor is fixed in a plan: what an epoch decides does not depend on
when maintenance deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

FLOOR: Final = "floor"  # among a plan's parameters


@dataclass(frozen=True)
class Floor:
    """Below it nothing decides any more: rows that landed up to `epoch`, and are not state.

    `offsets`: by half queue, where landing stood after that epoch. `deleted`: the floor that this
    epoch itself decided with; rows up to there can be deleted.
    """

    epoch: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    deleted: int = 0

    @property
    def first_epoch(self) -> int:
        """Returns the first epoch that can be run again: all that it looked at is there."""
        return self.epoch + 1 if self.deleted else 1

    def as_parameter(self) -> dict[str, Any]:
        """Returns the floor as a plan records it."""
        return {**asdict(self), "offsets": sorted(self.offsets.items())}
