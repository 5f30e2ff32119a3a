"""How the floor of a lake advances, and which epochs are below it (`storage/lake/floor.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import LakeError
from storage.lake.epochs import COMMITTED, Plan, has_snapshot
from storage.lake.floor import Floor
from storage.lake.history import read_plans
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant
from storage.wire.record_kinds import HALF
from txlake._delta_handle import file_stats

if TYPE_CHECKING:
    from storage.lake.lake import Lake


def advance_floor(lake: Lake, last: Plan, until_ms: int) -> Floor:
    """Returns the floor after a committed plan: the newest snapshot up to an instant.

    A floor never goes back. Input: `until_ms`: epochs are old up to this `epoch_at`.
    """
    floor = last.floor

    bounds: Bounds = {
        "epoch": (floor.epoch + 1, last.epoch),
        "epoch_at": (None, instant(until_ms)),
        "state": [COMMITTED],
    }
    rows = read_rows(lake, "epochs", ["epoch", "counts"], bounds)

    newest = pc.max(rows["epoch"].filter(has_snapshot(rows["counts"]))).as_py()
    if newest is None:
        return floor

    plan = read_plans(lake, [newest])[newest]
    return Floor(newest, plan.queue_ends(plan.topics[HALF]), plan.floor.epoch)


def snapshot_before(lake: Lake, epoch: int) -> int | None:
    """Returns the newest epoch up to a committed one that has a snapshot; None: not known."""
    plan = read_plans(lake, [epoch]).get(epoch)
    return None if plan is None else plan.snapshot.epoch or None


def epoch_times(lake: Lake) -> Callable[[int], int]:
    """Returns a function from an epoch to about its `epoch_at` in ms, from the log of `epochs`.

    The log tells the first and last epoch of each file; between them time is taken as even.
    """
    files = lake.table("epochs").files()
    if not files.num_rows or "min.epoch_at" not in files.column_names:
        return lambda _: 0

    instants_by_epoch: dict[int, int] = {}
    for bound in ("min", "max"):
        at = files[f"{bound}.epoch_at"].cast(pa.timestamp("ms", tz="UTC"), safe=False)
        pairs = pa.table([files[f"{bound}.epoch"], at.cast(pa.int64())], names=["epoch", "at"])
        instants_by_epoch |= {row["epoch"]: row["at"] for row in pairs.drop_null().to_pylist()}

    epochs = sorted(instants_by_epoch)
    instants = [instants_by_epoch[epoch] for epoch in epochs]

    return lambda epoch: int(np.interp(epoch, epochs, instants)) if epochs else 0


def first_epoch_of_last_rows(lake: Lake, table: str, rows: int) -> int:
    """Returns about the epoch at which a table's last rows begin, by its log.

    Input: `rows`: how many rows; the epochs from the result on have as many or a few more. Within
    a file the rows are taken as spread evenly over its epochs; without statistics it is 0.
    """
    names = ["min.epoch", "max.epoch", "num_records"]
    stats = file_stats(lake.table(table).files(), names)
    if any(column.null_count for column in stats.columns):
        return 0

    newest_first = sorted(stats.to_pylist(), key=lambda file: file["max.epoch"], reverse=True)
    for file in newest_first:
        first, last, row_count = (file[name] for name in names)
        if rows <= row_count:
            return int(last - (last - first) * rows / max(1, row_count))
        rows -= row_count

    return 0


def require_replayable(lake: Lake, floor: Floor, epoch: int) -> None:
    """Checks that an epoch can be run again: it is above the floor, or nothing is deleted yet.

    Input: the floor of the newest epoch. Errors: LakeError naming it.
    """
    if epoch < floor.first_epoch:
        raise LakeError(
            f"epoch {epoch} of the lake {lake.path} is below the floor, epoch {floor.epoch}: what "
            f"it looked at is deleted; epochs from {floor.first_epoch} on can be run again"
        )
