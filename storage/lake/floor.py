"""The floor of a lake: below it nothing decides any more, and in the end it is deleted.

It stands at an epoch that took a snapshot of the state, `[lake] retention_ms` ago, so every epoch
above it can be restored and run again. Such an epoch has looked at halves down to the floor of its
own time: those stay as long, so that a replay finds what the job found. So rows are deleted up to
the floor that the floor's epoch itself had, when they are between one and two `retention_ms` old
and an interval of snapshots. A floor is fixed in a plan: what an epoch decides does not depend on
when maintenance deletes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from storage.lake.epochs import COMMITTED, PLANNED, Floor, Plan, has_snapshot, plan_of
from storage.lake.pruned import Bounds, read_pruned
from storage.rows import instant
from storage.wire.kinds import HALF

if TYPE_CHECKING:
    from storage.lake.lake import Lake


def newer_floor(lake: Lake, last: Plan, until_ms: int) -> Floor:
    """Returns the floor after a committed plan: the newest snapshot up to an instant.

    Input: `until_ms`: what is decided at this `epoch_at`, or before, is old. A floor never goes
    back.
    """
    floor = last.floor
    columns = ["epoch", "counts"]
    bounds: Bounds = {
        "epoch": (floor.epoch + 1, last.epoch),
        "epoch_at": (None, instant(until_ms)),
        "state": [COMMITTED],
    }
    rows = read_pruned(lake, "epochs", columns, bounds).to_pylist()
    newest = max((row["epoch"] for row in rows if has_snapshot(row)), default=None)
    if newest is None:
        return floor
    where: Bounds = {"epoch": [newest], "state": [PLANNED]}
    (row,) = read_pruned(lake, "epochs", lake.schema("epochs").names, where).to_pylist()
    plan = plan_of(row)
    half_topic = plan.parameters["wire"]["topics"][HALF]
    return Floor(newest, plan.queue_ends(half_topic), plan.floor.epoch)


def epoch_times(lake: Lake) -> Callable[[int], int]:
    """Returns a function from an epoch to about its `epoch_at` in ms, from the log of `epochs`.

    The log tells the first and last epoch of each file; between them time is taken as even.
    """
    files = lake.table("epochs").files()
    if not files.num_rows or "min.epoch_at" not in files.column_names:
        return lambda _: 0
    known: dict[int, int] = {}
    for what in ("min", "max"):
        at = files[f"{what}.epoch_at"].cast(pa.timestamp("ms", tz="UTC"), safe=False)
        pairs = pa.table([files[f"{what}.epoch"], at.cast(pa.int64())], names=["epoch", "at"])
        known |= {row["epoch"]: row["at"] for row in pairs.drop_null().to_pylist()}
    epochs = sorted(known)
    instants = [known[epoch] for epoch in epochs]
    return lambda epoch: int(np.interp(epoch, epochs, instants)) if epochs else 0
