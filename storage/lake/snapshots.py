"""The newest snapshot of the state, as each plan records it, and when the next one is due.

A snapshot repeats rows that earlier epochs recorded as changes. So one is taken only after changes
of a quarter as many rows, or after an eighth of the retention: a lake holds at most four rows of
snapshots for each change, and few snapshots of a state in which little changes. A start reads one
snapshot, a quarter as many changes, and those of the epochs between two looks. The plan says it, so
an epoch that is run again takes a snapshot if its first run did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from storage.schemas import SNAPSHOT

_ROWS_A_CHANGE: Final = 4
# The floor moves from snapshot to snapshot: by so small a part of the retention at a time.
_PARTS_OF_RETENTION: Final = 8


@dataclass(frozen=True)
class Snapshot:
    """The newest snapshot up to an epoch, that one included.

    `epoch`: of the snapshot; 0: there is none. `at`: its `epoch_at`. `changes`: rows that changed
    the state since, without those of the plan's own epoch.
    """

    epoch: int = 0
    at: int = 0
    changes: int = 0

    def is_due(self, epoch_at: int, rows: int, retention_ms: int) -> bool:
        """Returns whether the next one is worth its rows.

        Input: when it would be taken; rows of the state.
        """
        is_old = epoch_at - self.at >= retention_ms // _PARTS_OF_RETENTION
        return is_old or rows <= _ROWS_A_CHANGE * self.changes

    def as_parameter(self) -> dict[str, int]:
        """Returns the snapshot as a plan records it."""
        return asdict(self)


def snapshot_of(parameters: Mapping[str, Any]) -> Snapshot:
    """Returns the snapshot among a plan's parameters.

    There is none in a lake that begins with a backfill from files, and in plans of earlier
    versions: a state is then read from all changes that are there, which is slow and right.
    """
    return Snapshot(**parameters.get(SNAPSHOT, {}))
