"""The rows of the state that an epoch can change: its cost follows these, not the rows that wait.

The decision leaves out all other rows. Nothing is decided here: the masks can mark too many rows,
never too few. State is kept in chunks; a chunk without active rows is kept as it is, without a
copy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import Inputs, State
from checker.frames_ops.columns import Mask, filter_rows, index_of, to_mask
from storage.schemas import row_keys
from txlake.protocol import RecordTarget, read_target

# On fewer rows splitting and joining costs more than it saves.
FEW_ROWS = 20_000
_CHUNK_ROWS = 65_536


def partition_state(
    state: State, inputs: Inputs, is_active: Mask, is_member: Mask, is_due: Mask, is_awaited: Mask
) -> tuple[State, State]:
    """Returns the part of a state that an epoch can change, and the rest.

    Input: `is_active`: the halves that can change even if they are not named; `is_member`: those
    that belong to a set; `is_due`: the delayed messages that are due, or named; `is_awaited`: the
    namings that can take effect; the halves of all others have not landed.
    Output: the rest has halves, delayed and waiting only. It has all members of a set or none, and
    all namings of an operation or none.
    """
    if state.halves.num_rows + state.delayed.num_rows + state.waiting.num_rows < FEW_ROWS:
        return state, State()

    commanded = _commanded(inputs.commands)

    operations = row_keys(state.waiting, "op_queue_offset")
    is_awaited = is_awaited | (index_of(operations, operations[is_awaited]) >= 0)

    waiting, other_waiting = split(state.waiting, is_awaited)

    named = pa.concat_tables(
        [
            commanded,
            waiting.select(["queue_id", "half_queue_offset"]).rename_columns(PLACE.names),
            named_halves(inputs.operations),
        ]
    )

    is_active = _with_sets(state.halves, is_active | is_named(state.halves, named), is_member)
    halves, other_halves = split(state.halves, is_active)
    delayed, other_delayed = split(state.delayed, is_due | is_named(state.delayed, commanded))

    return (
        replace(state, halves=halves, delayed=delayed, waiting=waiting),
        State(halves=other_halves, delayed=other_delayed, waiting=other_waiting),
    )


def _with_sets(halves: pa.Table, is_active: Mask, is_member: Mask) -> Mask:
    """Returns the mask with all halves of a set marked, where it marks one of them."""
    active_members = is_active & is_member
    if not active_members.any():
        return is_active

    active_units = row_keys(filter_rows(halves, active_members), "unit_offset")
    return is_active | (index_of(row_keys(halves, "unit_offset"), active_units) >= 0)


PLACE = pa.schema([("queue_id", pa.int32()), ("queue_offset", pa.int64())])


def _commanded(commands: pa.Table) -> pa.Table:
    """Returns the halves and schedule records that commands name.

    Output: queue_id, queue_offset.
    """
    targets = map(read_target, commands["target"].to_pylist())
    named = [target for target in targets if isinstance(target, RecordTarget)]

    return pa.table(
        [[target.queue_id for target in named], [target.queue_offset for target in named]],
        schema=PLACE,
    )


def named_halves(operations: pa.Table) -> pa.Table:
    """Returns the halves that readable operations name. Output: queue_id, queue_offset."""
    operations = filter_rows(operations, to_mask(operations["error"].is_null()))

    lists = operations["half_offsets"].combine_chunks()
    owners = pc.list_parent_indices(lists)
    return pa.table([operations["queue_id"].take(owners), pc.list_flatten(lists)], schema=PLACE)


def is_named(rows: pa.Table, named: pa.Table) -> Mask:
    """Returns for each row whether its place is among the named."""
    if named.num_rows == 0:
        return np.zeros(rows.num_rows, bool)
    return index_of(row_keys(rows), row_keys(named)) >= 0


def split(rows: pa.Table, is_wanted: Mask) -> tuple[pa.Table, pa.Table]:
    """Returns the wanted rows of a frame, and the rest."""
    wanted: list[pa.RecordBatch] = []
    rest: list[pa.RecordBatch] = []
    start = 0

    for batch in rows.to_batches(max_chunksize=_CHUNK_ROWS):
        mask = is_wanted[start : start + batch.num_rows]
        start += batch.num_rows
        count = np.count_nonzero(mask)

        if mask[:count].all():  # the first rows, or none: no copy
            wanted.append(batch.slice(0, count))
            rest.append(batch.slice(count))
        else:
            wanted.append(batch.filter(pa.array(mask)))
            rest.append(batch.filter(pa.array(~mask)))

    return pa.Table.from_batches(wanted, rows.schema), pa.Table.from_batches(rest, rows.schema)


def join(rest: pa.Table, changed: pa.Table, order: str | None = None) -> pa.Table:
    """Returns the rows of `rest` and `changed` as one frame; small chunks are combined into one.

    Input: `order`: the column by which rows are sorted within a chunk, so that the rows that are
    split off next stand first.
    """
    if rest.num_rows == 0 and (order is None or changed.num_rows < FEW_ROWS):
        return changed.combine_chunks()

    large: list[pa.RecordBatch] = []
    small = changed.to_batches()
    for batch in rest.to_batches():
        (large if batch.num_rows >= _CHUNK_ROWS // 2 else small).append(batch)

    combined = pa.Table.from_batches(small, rest.schema).combine_chunks()
    if order is not None:
        combined = combined.sort_by(order).combine_chunks()

    return pa.Table.from_batches([*large, *combined.to_batches()], rest.schema)
