"""Whether the rows that a replay looks at are still there: a job deletes old ones meanwhile."""

from __future__ import annotations

from storage.errors import BrokenLakeError, LakeError
from storage.lake.history import read_plans
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.lake.table import deleted_rows
from storage.maintenance.expiry import EXPIRING


class KeptRows:
    """The rows that a lake has now. Whether they are kept is asked after some of them were read."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._deleted = self._deleted_rows()

    def require(self, epoch: int) -> None:
        """Checks that no row of later epochs was deleted since. Errors: LakeError."""
        if self._deleted_rows() == self._deleted:
            return

        last = read_progress(self._lake).last
        if last is not None and last.floor.deleted > epoch:
            raise LakeError(
                f"the floor of the lake {self._lake.path} has moved meanwhile, to epoch "
                f"{last.floor.epoch}, and rows that are looked at were deleted: run it again, or "
                "on a copy (`txlake backup`)"
            )

    def require_above(self, first_epoch: int) -> None:
        """Checks that no row was deleted since that epochs from one on look at.

        They look at rows above the floor that the first of them knew. Errors: LakeError.
        """
        plan = read_plans(self._lake, [first_epoch]).get(first_epoch)
        self.require(first_epoch - 1 if plan is None else plan.floor.epoch)

    def _deleted_rows(self) -> dict[str, int]:
        counts = {}
        for table in EXPIRING:
            try:
                counts[table] = deleted_rows(self._lake.handle(table))
            except BrokenLakeError:  # whoever reads it says so
                continue
        return counts
