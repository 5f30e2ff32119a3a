"""What of the state an epoch can touch, so that it costs what changes and not what waits.

All that follows here only leaves rows out of the decision that it could not change; it never
decides. The masks say yes too often rather than once too seldom. State is kept in chunks: one of
which nothing is touched goes on as it is, without a copy.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import Mask, find, longs, places, truth
from checker.frames import Inputs, Parameters, State

# Below this taking apart and putting together costs more than it saves.
FEW_ROWS = 20_000
_CHUNK_ROWS = 65_536
_UNKNOWN = -(1 << 62)  # an instant before all others; differences with it still fit


def split_state(
    state: State, inputs: Inputs, queues: pa.Table, epoch_at: int, parameters: Parameters
) -> tuple[State, State]:
    """Return what an epoch may touch of a state, and what it leaves alone.

    Input: QUEUES; T. Output: the second has halves and delayed only.
    """
    if state.halves.num_rows + state.delayed.num_rows < FEW_ROWS:
        return state, State()
    commanded = _commanded(inputs.commands)
    named = pa.concat_tables(
        [
            commanded,
            state.waiting.select(["queue_id", "half_queue_offset"]).rename_columns(_PLACE.names),
            _named(inputs.operations),
        ]
    )
    is_set = truth(pc.greater(state.halves["tran_size"], 1))
    is_near = is_set | is_named(state.halves, named) | may_be_due(state.halves, queues, parameters)
    halves, halves_left = split(state.halves, is_near)
    is_due = truth(pc.less_equal(state.delayed["deliver_at"], epoch_at))
    delayed, delayed_left = split(state.delayed, is_due | is_named(state.delayed, commanded))
    near = replace(state, halves=halves, delayed=delayed)
    return near, State(halves=halves_left, delayed=delayed_left)


_PLACE = pa.schema([("queue_id", pa.int32()), ("queue_offset", pa.int64())])
# A command's target that is a half or a scheduled message; which of them does not matter here.
_TARGET = re.compile(r"[a-z]+:([0-9]{1,9})-([0-9]{1,18})")


def _commanded(commands: pa.Table) -> pa.Table:
    """Return the places that an operator's commands name. Output: queue_id, queue_offset."""
    found = (_TARGET.fullmatch(target or "") for target in commands["target"].to_pylist())
    rows = [dict(zip(_PLACE.names, map(int, match.groups()), strict=True))
            for match in found if match]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=_PLACE)


def _named(operations: pa.Table) -> pa.Table:
    """Return the halves that operations name. Output: queue_id, queue_offset."""
    lists = operations["half_offsets"].combine_chunks()
    owners = pc.list_parent_indices(lists)
    return pa.table([operations["queue_id"].take(owners), pc.list_flatten(lists)], schema=_PLACE)


def is_named(rows: pa.Table, named: pa.Table) -> Mask:
    """Say of each row whether its place, queue_id and queue_offset, is among the named."""
    if named.num_rows == 0:
        return np.zeros(rows.num_rows, bool)
    return find(places(rows), places(named)) >= 0


def may_be_due(halves: pa.Table, queues: pa.Table, parameters: Parameters) -> Mask:
    """Say of each half whether `timing.apply_time` might act upon it, or its set's first half."""
    known = {row["queue_id"]: row["known_at"] for row in queues.to_pylist()}
    queue = longs(halves["queue_id"])
    size = max([*known, int(queue.max(initial=0))]) + 1
    known_at = np.full(size, _UNKNOWN, np.int64)
    for number, instant in known.items():
        if instant is not None:
            known_at[number] = instant
    now, stored_at = known_at[queue], longs(halves["stored_at"])
    patience = longs(halves["immunity_ms"], null=parameters.transaction_timeout_ms)
    was_asked = truth(halves["checked_at"].is_valid())
    since = np.where(was_asked, longs(halves["checked_at"]), stored_at)
    is_time = now - since >= np.where(was_asked, parameters.check_interval_ms, patience)
    is_expired = now - stored_at > parameters.half_retention_ms
    return (is_time | is_expired) & truth(halves["discard_cause"].is_null())


def split(rows: pa.Table, wanted: Mask) -> tuple[pa.Table, pa.Table]:
    """Take the wanted rows out of a frame. Output: those, and what is left."""
    taken, left, start = [], [], 0
    for batch in rows.to_batches(max_chunksize=_CHUNK_ROWS):
        mask = wanted[start : start + batch.num_rows]
        start += batch.num_rows
        count = np.count_nonzero(mask)
        if mask[:count].all():  # the first ones or none: no copy
            taken.append(batch.slice(0, count))
            batch = batch.slice(count)
        else:
            taken.append(batch.filter(pa.array(mask)))
            batch = batch.filter(pa.array(~mask))
        left.append(batch)
    return (pa.Table.from_batches(taken, rows.schema), pa.Table.from_batches(left, rows.schema))


def join(left: pa.Table, changed: pa.Table, order: str | None = None) -> pa.Table:
    """Put a frame together again; chunks that have become small become one.

    `order`: the column by which rows are sorted within a chunk, so that those to be taken out
    next are its first.
    """
    if left.num_rows == 0 and (order is None or changed.num_rows < FEW_ROWS):
        return changed
    large: list[pa.RecordBatch] = []
    small = changed.to_batches()
    for batch in left.to_batches():
        (large if batch.num_rows >= _CHUNK_ROWS // 2 else small).append(batch)
    rest = pa.Table.from_batches(small, left.schema).combine_chunks()
    if order is not None:
        rest = rest.sort_by(order).combine_chunks()
    return pa.Table.from_batches([*large, *rest.to_batches()], left.schema)
