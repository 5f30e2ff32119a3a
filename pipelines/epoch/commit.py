"""The rows and counts by which an epoch is committed: changes of the state, landed, decided."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import STATE_KEYS, Decision, State
from pipelines.epoch.batch import Batch
from pipelines.epoch.restore import FRAMES, change_rows
from storage.lake.epochs import Plan
from storage.wire.kinds import HALF, KINDS


def state_rows(plan: Plan, decision: Decision, is_snapshot: bool) -> dict[str, pa.Table]:
    """Returns the changes of the state by table, with all rows of the state in a snapshot."""
    state = decision.state if is_snapshot else None
    return {
        table: change_rows(table, decision.changes[frame], state, plan.epoch)
        for table, frame in FRAMES.items()
    }


def state_size(state: State) -> dict[str, int]:
    """Returns how many rows and bytes of halves, namings and delayed messages the driver holds."""
    frames = [getattr(state, name) for name in STATE_KEYS]
    return {
        "state_rows": sum(frame.num_rows for frame in frames),
        "state_bytes": sum(frame.nbytes for frame in frames),
    }


def landed_counts(batch: Batch) -> dict[str, int]:
    """Returns the numbers of landed records; `verify` counts them again."""
    counts = {f"landed_{kind}": batch.rows(kind).num_rows for kind in KINDS}
    halves = batch.rows(HALF)
    return counts | {"unreadable_half": halves.num_rows - halves["error"].null_count}


def decided_counts(decision: Decision) -> dict[str, int]:
    """Returns the numbers of decided rows; `verify` counts them again."""
    outcomes = pc.value_counts(decision.outcomes["outcome"]).to_pylist()
    counts = {row["values"].lower(): row["counts"] for row in outcomes}
    return counts | {"placed": decision.placements.num_rows, "due": decision.due.num_rows}
