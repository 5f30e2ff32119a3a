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
from storage.lake.epochs import Partition, Plan, committed_row, planned_row
from storage.lake.lake import Lake
from storage.lake.progress import Progress
from storage.schemas import SNAPSHOT


def next_plan_row(lake: Lake, progress: Progress, plan: Plan) -> tuple[pa.Table, Progress]:
    """Returns the row that pins an epoch, and where the epochs stand with it.

    The caller writes the row before anything else of the epoch.
    """
    row, digest = _chained(lake, progress, planned_row(plan, _now()))
    return row, progress.planned(plan, digest)


def write_plan(lake: Lake, progress: Progress, plan: Plan) -> Progress:
    """Writes the row that pins an epoch. Output: where the epochs stand then.

    Errors: OwnerError when another driver has planned it: only one such row can exist.
    """
    row, planned = next_plan_row(lake, progress, plan)
    _append(lake, row, plan)
    return planned


def write_commit(
    lake: Lake,
    progress: Progress,
    plan: Plan,
    next_offsets: Mapping[Partition, int],
    counts: Mapping[str, int],
    step_ms: Mapping[str, int],
    work: Mapping[str, int] | None = None,
) -> Progress:
    """Writes the commit point of an epoch whose other rows are all written.

    Input: where the epochs stand with its plan; the next offsets of the real queues, at least of
    those that grew. Output: where the epochs stand then.
    Errors: OwnerError when another driver has committed it.
    """
    written = lake.row_counts.take(progress.tables)
    tables = {**progress.tables, **written}

    before = progress.next_offsets
    advanced = {
        queue: offset for queue, offset in next_offsets.items() if before.get(queue) != offset
    }
    offsets = {**before, **advanced}

    if SNAPSHOT in counts:  # this row names all
        written = tables
        advanced = offsets

    row = committed_row(plan, _now(), counts, step_ms, advanced, written, work)
    row, digest = _chained(lake, progress, row)
    _append(lake, row, plan)

    return progress.committed(plan, digest, counts, offsets, tables)


def _chained(lake: Lake, progress: Progress, row: pa.Table) -> tuple[pa.Table, str]:
    """Returns a row with its digest, and that digest."""
    return with_digest(row, progress.digest or lake.majority_lake_id())


def _append(lake: Lake, row: pa.Table, plan: Plan) -> None:
    """Writes a row, or finds it written: the answer to our commit can have been lost."""
    if lake.append("epochs", row, plan.epoch):
        return

    state = row["state"][0].as_py()
    is_same = (pc.field("epoch") == plan.epoch) & (pc.field("state") == state)
    existing = lake.read("epochs", ["owner", "digest"], is_same).to_pylist()

    if {other["digest"] for other in existing} != {row["digest"][0].as_py()}:
        # A row names the driver that planned: another can have finished an epoch of our plan.
        owners = sorted({other["owner"] for other in existing} - {plan.owner})
        writers = ", ".join(owners) or "another process"
        raise OwnerError(
            f"epoch {plan.epoch} was {state} by {writers}: another driver writes "
            "this lake; this one stops"
        )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)
