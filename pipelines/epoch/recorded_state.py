"""The state as an epoch left it, read from the rows in which every epoch recorded its changes.

Each of `pending`, `waiting` and `delayed` has rows `put` (came in or changed, with all columns),
`left` (the key alone) and, in some epochs, a `snapshot` of all. The state after an epoch is the
newest snapshot up to it with the later changes applied; that takes no rule of the protocol. The
job's start, `tx explain`, trials, notebooks and replays all read it so.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import (
    DELAYED,
    HALVES,
    NAMINGS,
    NEXT_OFFSETS,
    STATE_KEYS,
    TOPICS,
    Change,
    Decision,
    State,
)
from checker.frames_ops.sql import run
from storage.lake.epochs import Plan, offset_rows
from storage.lake.lake import Lake
from storage.lake.progress import Progress
from storage.lake.pruned import Bounds, read_rows
from storage.rows import to_frame, to_rows
from storage.schemas import LEFT, PUT, SNAPSHOT, TABLES

# The tables of the state, each with its frame in State.
FRAMES = {"pending": "halves", "waiting": "waiting", "delayed": "delayed"}
_SCHEMAS = {"pending": HALVES, "waiting": NAMINGS, "delayed": DELAYED}


def restore(lake: Lake, progress: Progress) -> State:
    """Returns the state after the last committed epoch, as the job held it when it committed.

    Rows of later epochs are left out, so that an unfinished epoch is run again from the same state
    as the first time. Rows are in the order of their keys.
    """
    last = progress.last
    if last is None:
        return State()

    snapshot_epoch = last.snapshot.epoch or None
    frames = {
        frame: read_state(lake, table, last.epoch, snapshot_epoch)
        for table, frame in FRAMES.items()
    }
    next_offsets = offset_rows(progress.next_offsets)

    return State(
        **frames,
        topics=topics_before(lake, last.epoch + 1),
        next_offsets=pa.Table.from_pylist(next_offsets, schema=NEXT_OFFSETS),
    )


def read_state(
    lake: Lake,
    table: str,
    epoch: int,
    snapshot_epoch: int | None,
    bounds: Bounds | None = None,
) -> pa.Table:
    """Returns one frame of the state as an epoch left it.

    Input: `table`: `pending`, `waiting` or `delayed`; `snapshot_epoch`: the newest snapshot up to
    that epoch (None: there is none, or few rows are wanted); `bounds` on columns of the key: only
    these rows.
    Output: HALVES, NAMINGS or DELAYED, in the order of its key.
    """
    return latest_rows(table, read_state_log(lake, table, epoch, snapshot_epoch, bounds))


def read_state_log(
    lake: Lake,
    table: str,
    epoch: int,
    snapshot_epoch: int | None = None,
    bounds: Bounds | None = None,
) -> pa.Table:
    """Returns the rows from which a frame of the state follows; input as `read_state`.

    Without `snapshot_epoch` the rows of a snapshot come with the changes before it, which say the
    same.
    """
    first_epoch = snapshot_epoch or 0
    row_epoch = pc.field("epoch")
    is_snapshot = pc.field("change") == SNAPSHOT

    condition = row_epoch <= epoch
    if snapshot_epoch is not None:
        of_snapshot = (row_epoch == first_epoch) & is_snapshot
        later_change = (row_epoch > first_epoch) & (pc.field("change") != SNAPSHOT)
        condition &= of_snapshot | later_change

    all_bounds: Bounds = {"epoch": (first_epoch, epoch), **(bounds or {})}
    with lake.translating_read_errors(table):
        return read_rows(lake, table, lake.schema(table).names, all_bounds, condition)


def latest_rows(table: str, rows: pa.Table) -> pa.Table:
    """Returns the newest recorded row of each key, unless that is `left`.

    Input: rows of `read_state_log`, with or without a snapshot. Output: as `read_state`.
    """
    key = STATE_KEYS[FRAMES[table]]
    schema = _SCHEMAS[table]
    if rows.num_rows == 0:
        return schema.empty_table()

    narrow = rows.select([*key, "epoch"]).append_column("row", pa.array(np.arange(rows.num_rows)))
    names = ", ".join(key)
    positions = run(
        f"SELECT arg_max(row, epoch) AS row FROM narrow GROUP BY {names} ORDER BY {names}",
        narrow=narrow,
    )

    newest = rows.take(positions["row"])
    return to_frame(newest.filter(pc.not_equal(newest["change"], LEFT)), schema)


def state_log_rows(table: str, change: Change, state: State | None, epoch: int) -> pa.Table:
    """Returns the rows by which an epoch records its changes of one frame of the state.

    Input: the epoch's Change of that frame; the state after the epoch, if it takes a snapshot.
    """
    schema = TABLES[table]
    parts = [(change.put, PUT), (change.left, LEFT)]
    if state is not None:
        parts.append((getattr(state, FRAMES[table]), SNAPSHOT))

    order = [(name, "ascending") for name in STATE_KEYS[FRAMES[table]]]
    rows = [
        to_rows(frame.sort_by(order), schema, change=kind, epoch=epoch)
        for frame, kind in parts
        if frame.num_rows
    ]
    return pa.concat_tables(rows) if rows else schema.empty_table()


def state_rows(plan: Plan, decision: Decision, is_snapshot: bool) -> dict[str, pa.Table]:
    """Returns the changes of the state by table, with all rows of the state in a snapshot."""
    state = decision.state if is_snapshot else None
    return {
        table: state_log_rows(table, decision.changes[frame], state, plan.epoch)
        for table, frame in FRAMES.items()
    }


def topics_before(lake: Lake, epoch: int) -> pa.Table:
    """Returns the catalog as it was before an epoch: each topic once, with its largest count."""
    return run(
        """
        SELECT topic, min(table_id) AS table_id, max(queue_count) AS queue_count,
          min(producer_group) AS producer_group
        FROM catalog GROUP BY topic ORDER BY table_id
        """,
        catalog=lake.read("catalog", where=pc.field("epoch") < epoch),
    ).cast(TOPICS)
