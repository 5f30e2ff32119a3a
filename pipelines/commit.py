"""What an epoch says of itself when it is committed: its changes of the state, and counts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import Decision
from pipelines.batch import Batch
from pipelines.restore import FRAMES, change_rows
from storage.epochs import Plan
from storage.kafka_rows import HALF, KINDS


def state_rows(plan: Plan, decision: Decision, is_snapshot: bool) -> dict[str, pa.Table]:
    """Return what an epoch changed in the state, and now and then all of it, by table."""
    state = decision.state if is_snapshot else None
    return {
        table: change_rows(table, decision.changes[frame], state, plan.epoch)
        for table, frame in FRAMES.items()
    }


def landed_counts(batch: Batch) -> dict[str, int]:
    """Count what the epoch landed; `verify` adds it up again."""
    counts = {f"landed_{kind}": batch.rows(kind).num_rows for kind in KINDS}
    halves = batch.rows(HALF)
    return counts | {"unreadable_half": halves.num_rows - halves["error"].null_count}


def decided_counts(decision: Decision) -> dict[str, int]:
    """Count what the epoch decided; `verify` adds it up again."""
    outcomes = pc.value_counts(decision.outcomes["outcome"]).to_pylist()
    counts = {row["values"].lower(): row["counts"] for row in outcomes}
    return counts | {"placed": decision.placements.num_rows, "due": decision.due.num_rows}
