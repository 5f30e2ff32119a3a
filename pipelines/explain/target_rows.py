"""The rows of a lake about many targets: read together once, given for each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from pipelines.epoch.recorded_state import topics_before
from pipelines.explain.fetch import find, find_records
from pipelines.explain.rows import LakeRows
from pipelines.explain.units import Unit, units_of
from storage.lake.lake import Lake
from txlake.protocol import RecordTarget, Target


class TargetRows:
    """The rows about some targets. A read takes as long for a hundred of them as for a few.

    Errors: as `find`.
    """

    def __init__(self, lake: Lake, targets: Sequence[Target | None] = ()) -> None:
        self._lake = lake
        self._units: dict[RecordTarget, Unit] = {}
        self._topics: dict[int, pa.Table] = {}

        records = [target for target in targets if isinstance(target, RecordTarget)]
        if len(records) > 1:
            self._units = {
                unit.target(offset): unit
                for unit in units_of(find_records(lake, records))
                for offset in unit.offsets
            }

    def of(self, target: RecordTarget) -> LakeRows:
        """Returns what `find` returns, but of other messages' operations perhaps more."""
        unit = self._units.get(target)
        return find(self._lake, target) if unit is None else _rows_of(unit)

    def topics_before(self, epoch: int) -> pa.Table:
        """Returns the topics as they were before an epoch, read once."""
        if epoch not in self._topics:
            self._topics[epoch] = topics_before(self._lake, epoch)
        return self._topics[epoch]


def _rows_of(unit: Unit) -> LakeRows:
    """Returns the rows about one unit, and about the operations of its half queue."""
    rows = unit.lake_rows
    queue_id = unit.queue_id
    return replace(
        rows,
        messages=unit.messages,
        elsewhere=unit.elsewhere,
        operations=[row for row in rows.operations if row["queue_id"] == queue_id],
        outcomes=unit.of(rows.outcomes),
        checks=unit.of(rows.checks),
        delayed=unit.of(rows.delayed),
        deliveries=unit.of(rows.deliveries),
        namings=[row for row in rows.namings if row["queue_id"] == queue_id],
        still_delayed=[row for row in rows.still_delayed if unit.is_about(row)],
    )
