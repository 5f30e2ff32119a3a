"""How long each epoch of a lake took, step by step, from its `epochs` table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from storage.lake.epochs import COMMITTED, PLANNED
from storage.lake.lake import Lake

# From one commit to the next gathering, where that comes later: Spark's own part of a batch, and
# the time that nothing is to be done.
BETWEEN = "between epochs"
_COLUMNS = ["epoch", "state", "written_at", "ranges", "step_ms", "counts"]


@dataclass(frozen=True)
class EpochTime:
    """One committed epoch. Units: s, instants since 1970."""

    epoch: int
    began_at: float
    planned_at: float
    ended_at: float
    records: int
    halves: int
    step_ms: Mapping[str, int]
    counts: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.ended_at - self.began_at


def epoch_times(lake: Lake) -> list[EpochTime]:
    """Read all committed epochs, in order."""
    rows: dict[str, dict[int, dict[str, Any]]] = {PLANNED: {}, COMMITTED: {}}
    for row in Lake(lake.location).read("epochs", _COLUMNS).to_pylist():
        rows[row["state"]][row["epoch"]] = row

    found = []
    for epoch, committed in sorted(rows[COMMITTED].items()):
        planned = rows[PLANNED][epoch]
        steps, counts = dict(committed["step_ms"]), dict(committed["counts"])
        planned_at = planned["written_at"].timestamp()

        found.append(
            EpochTime(
                epoch,
                planned_at - (steps.get("gather", 0) + steps.get("wait", 0)) / 1000,
                planned_at,
                committed["written_at"].timestamp(),
                sum(r["to_offset"] - r["from_offset"] for r in planned["ranges"]),
                counts.get("landed_half", 0),
                steps,
                counts,
            )
        )

    return found


def cadence_s(times: Sequence[EpochTime]) -> list[float]:
    """Return the time from each commit to the next: all that an epoch costs in a running stream."""
    return [b.ended_at - a.ended_at for a, b in pairwise(times)]


def steps_s(times: Sequence[EpochTime]) -> dict[str, float]:
    """Add up each step over epochs, which may overlap, and the time between them."""
    found: dict[str, float] = {}
    for time in times:
        for step, ms in time.step_ms.items():
            found[step] = found.get(step, 0.0) + ms / 1000
    gaps = [max(0.0, b.began_at - a.ended_at) for a, b in pairwise(times)]
    found[BETWEEN] = sum(gaps)
    return {step: round(seconds, 3) for step, seconds in found.items()}


def median_steps_ms(times: Sequence[EpochTime]) -> dict[str, float]:
    """Return the median of each step."""
    names = dict.fromkeys(step for time in times for step in time.step_ms)
    return {n: statistics.median(t.step_ms.get(n, 0) for t in times) for n in names}
