"""The recorded epochs of a lake: their plans, counts and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from storage.errors import LakeError
from storage.lake.epochs import COMMITTED, PLANNED, Plan, next_offsets_of, parse_plan
from storage.lake.pruned import Bounds, read_rows
from storage.schemas import SNAPSHOT

if TYPE_CHECKING:
    from storage.lake.lake import Lake

_EPOCHS_AT_ONCE = 500


@dataclass(frozen=True)
class Recorded:
    """A committed epoch: its plan, the next offsets after it, and its counts."""

    plan: Plan
    next_offsets: Mapping[tuple[str, int], int]
    counts: Mapping[str, int]

    @property
    def snapshot(self) -> int | None:
        """Returns 1 if it took a snapshot of the state, 0 if its row names all without one."""
        return self.counts.get(SNAPSHOT)

    @property
    def record_count(self) -> int:
        """Returns how many offsets it landed."""
        return sum(r.to_offset - r.from_offset for r in self.plan.ranges)


def read_plans(lake: Lake, epochs: Iterable[int]) -> dict[int, Plan]:
    """Returns the plans of some epochs; of a missing one there is none."""
    bounds: Bounds = {"epoch": sorted(set(epochs)), "state": [PLANNED]}
    rows = read_rows(lake, "epochs", [field.name for field in fields(Plan)], bounds)
    return {row["epoch"]: parse_plan(row) for row in rows.to_pylist()}


def recorded_epochs(lake: Lake, first: int, last: int) -> Iterator[Recorded]:
    """Returns the committed epochs from `first` to `last` in order, 500 in memory at a time.

    Errors: LakeError when one is missing.
    """
    for low in range(first, last + 1, _EPOCHS_AT_ONCE):
        high = min(last, low + _EPOCHS_AT_ONCE - 1)
        within = (pc.field("epoch") >= low) & (pc.field("epoch") <= high)
        rows = {
            (row["epoch"], row["state"]): row
            for row in lake.read("epochs", where=within).to_pylist()
        }

        for epoch in range(low, high + 1):
            planned = rows.get((epoch, PLANNED))
            committed = rows.get((epoch, COMMITTED))

            if planned is None or committed is None:
                state = PLANNED if planned is None else COMMITTED
                raise LakeError(f"the lake {lake.path} has no {state} row of epoch {epoch}")

            counts = dict(committed["counts"] or ())
            yield Recorded(parse_plan(planned), next_offsets_of(committed), counts)
