"""The numbers of an epoch in its `committed` row: rows by name, and the size of the state."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import STATE_KEYS, Decision, State
from pipelines.epoch.batch import Batch
from storage.wire.record_kinds import HALF, KINDS


def state_size(state: State) -> dict[str, int]:
    """Returns the rows and bytes of halves, namings and delayed messages in the driver's memory."""
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


def advanced_offsets(placements: pa.Table) -> dict[tuple[str, int], int]:
    """Returns the next offset of each real queue that an epoch delivers to. Input: PLACEMENTS."""
    queues = placements.group_by(["topic", "real_queue_id"])
    rows = queues.aggregate([("real_queue_offset", "max")]).to_pylist()
    return {(row["topic"], row["real_queue_id"]): row["real_queue_offset_max"] + 1 for row in rows}
