"""The two rows of each epoch, written as a chain that shows whether one was changed or removed.

Every row of `epochs` holds a digest of itself and of the row before it, the first one of the lake's
id. A committed row names real queues with their next offsets, and tables with their Delta version
and the number of rows written so far (`storage/lake/epochs.py`). So a start can tell, from logs
alone, whether all committed rows are still there (`storage/lake/integrity.py`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import OwnerError
from storage.lake.chain import with_digest
from storage.lake.epochs import (
    Plan,
    Progress,
    TableVersion,
    committed_row,
    planned_row,
)
from storage.lake.lake import Lake
from storage.schemas import SNAPSHOT


class EpochLog:
    """Writes `planned` and `committed` of one epoch after the other."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._digest = ""
        self._tables: dict[str, TableVersion] = {}
        self._next_offsets: dict[tuple[str, int], int] = {}

    def resume_from(self, progress: Progress) -> None:
        """Goes on after the newest row, from the committed offsets and tables."""
        self._digest = progress.digest
        self._tables = dict(progress.tables)
        self._next_offsets = dict(progress.next_offsets)
        self._lake.stock.reset({table: at.rows for table, at in self._tables.items()})

    def planned(self, plan: Plan) -> pa.Table:
        """Returns the row that pins an epoch; the caller writes it before anything else of it."""
        return self._next(planned_row(plan, _now()))

    def plan(self, plan: Plan) -> None:
        """Writes the row that pins an epoch.

        Errors: OwnerError when another driver has planned it: only one such row can exist.
        """
        self._append(self.planned(plan), plan)

    def commit(
        self,
        plan: Plan,
        next_offsets: Mapping[tuple[str, int], int],
        counts: Mapping[str, int],
        step_ms: Mapping[str, int],
        work: Mapping[str, int] | None = None,
    ) -> None:
        """Writes the commit point of an epoch whose other rows are all written.

        Input: the next offsets of the real queues, at least of those that grew.
        Errors: OwnerError when another driver has committed it.
        """
        tables = self._lake.stock.changed()
        self._tables |= tables

        grown = {
            queue: offset
            for queue, offset in next_offsets.items()
            if self._next_offsets.get(queue) != offset
        }
        self._next_offsets |= grown

        if SNAPSHOT in counts:  # this row names all
            grown = self._next_offsets
            tables = self._tables

        row = committed_row(plan, _now(), counts, step_ms, grown, tables, work)
        self._append(self._next(row), plan)

    def _append(self, row: pa.Table, plan: Plan) -> None:
        """Writes a row, or finds it written: the answer to our commit can have been lost."""
        if self._lake.append("epochs", row, plan.epoch):
            return

        state = row["state"][0].as_py()
        is_same = (pc.field("epoch") == plan.epoch) & (pc.field("state") == state)
        existing = self._lake.read("epochs", ["owner", "digest"], is_same).to_pylist()

        if {other["digest"] for other in existing} != {row["digest"][0].as_py()}:
            # A row names the driver that planned: another can have finished an epoch of our plan.
            owners = sorted({other["owner"] for other in existing} - {plan.owner})
            writers = ", ".join(owners) or "another process"
            raise OwnerError(
                f"epoch {plan.epoch} was {state} by {writers}: another driver writes "
                "this lake; this one stops"
            )

    def _next(self, row: pa.Table) -> pa.Table:
        before = self._digest or self._lake.majority_lake_id()
        chained_row, self._digest = with_digest(row, before)
        return chained_row


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)
