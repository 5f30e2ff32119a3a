"""Which halves are there: an operation can still name them.

A half is there while it is in the state, or at or above the floor of its queue; a plan fixes the
floor. In the state are:

- pending halves, and the duplicates of a pending set with it, however far the floor moves;
- delayed halves, until they are delivered or cancelled;
- discarded halves, until the floor has passed their whole set (its duplicates do not count), and as
  long as an operation waits for that.

All rules use these functions. A half that is not there decides nothing any more; a naming of it is
`below_floor`.

Source: docs/protocol/rules.md "Retention"; RocketMQ's fileReservedTime deletes old records,
whatever their outcome.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import State
from checker.frames_ops.active import PLACE, is_named
from checker.frames_ops.columns import Mask, filter_rows, index_of, take, to_int64, to_mask
from checker.frames_ops.sql import select
from checker.rules.sets import SET_KEY, members_with_id, only_sets
from storage.schemas import row_keys

# The duplicates of a set of the state come after its first landed half. Halves of the same key
# before it belonged to a set that ended.
_DUPLICATES = f"""
SELECT DISTINCT e.queue_id, e.queue_offset, h.unit_offset
FROM ended e JOIN halves h USING ({SET_KEY})
WHERE e.status <> 'UNREADABLE' AND e.queue_offset > h.unit_offset
"""
_DUPLICATE_ROWS = pa.schema([*PLACE, pa.field("unit_offset", pa.int64())])


def is_below(rows: pa.Table, queues: pa.Table, offset: str = "queue_offset") -> Mask:
    """Returns for each row whether its place is below the floor of its queue.

    Input: `queue_id` and the column `offset`; `queue_id` and `floor` (null: 0).
    """
    if rows.num_rows == 0 or not to_int64(queues["floor"], null=0).any():
        return np.zeros(rows.num_rows, bool)

    queue = take(queues, index_of(to_int64(rows["queue_id"]), to_int64(queues["queue_id"])))
    return to_int64(rows[offset]) < to_int64(queue["floor"], null=0)


def is_there(ended: pa.Table, state: State, queues: pa.Table) -> Mask:
    """Returns for each half outside `state.halves` whether an operation can still name it.

    Input: ENDED; the state without the halves that drop out of it in this epoch; QUEUES.
    """
    is_visible = ~is_below(ended, queues)
    if is_visible.all():
        return is_visible

    is_visible |= is_named(ended, _delayed_halves(state))
    is_visible |= is_named(ended, _duplicates(ended, state.halves))
    return is_visible


def can_be_there(named: pa.Table, state: State, queues: pa.Table) -> Mask:
    """Returns for each place whether a half outside `state.halves` can be there.

    The mask can mark more: after the first half of a pending set come its duplicates, and others.
    Input: queue_id, queue_offset; the state; QUEUES.
    """
    can_be = ~is_below(named, queues)
    if can_be.all():
        return can_be

    can_be |= is_named(named, _delayed_halves(state))

    members = only_sets(state.halves)
    first = members.group_by("queue_id").aggregate([("queue_offset", "min")])
    at = index_of(to_int64(named["queue_id"]), to_int64(first["queue_id"]))
    after = to_int64(take(first, at)["queue_offset_min"], null=-1)

    return can_be | ((at >= 0) & (to_int64(named["queue_offset"]) > after))


def drops_out(state: State, ended: pa.Table, queues: pa.Table) -> Mask:
    """Returns for each half of `state.halves` whether it leaves the state.

    Input: the state before the epoch; what the epoch looked up (ENDED); QUEUES.
    """
    halves = state.halves
    is_discarded = to_mask(halves["discard_cause"].is_valid())
    if not is_discarded.any():
        return is_discarded

    is_leaving = is_discarded & is_below(halves, queues)
    if is_leaving.any():
        units = row_keys(halves, "unit_offset")
        remaining = row_keys(filter_rows(halves, ~is_leaving), "unit_offset")
        awaited = _awaited_units(state, ended)
        is_leaving &= index_of(units, np.concatenate([remaining, awaited])) < 0

    return is_leaving


def _awaited_units(state: State, ended: pa.Table) -> np.ndarray:
    """Returns the row keys of the units that waiting operations name."""
    halves = state.halves
    waiting = state.waiting.select(["queue_id", "half_queue_offset"]).rename_columns(PLACE.names)
    if waiting.num_rows == 0:
        return np.zeros(0, np.int64)

    duplicates = _duplicates(filter_rows(ended, is_named(ended, waiting)), halves)
    members = filter_rows(halves, is_named(halves, waiting))

    return np.concatenate([row_keys(members, "unit_offset"), row_keys(duplicates, "unit_offset")])


def _delayed_halves(state: State) -> pa.Table:
    return filter_rows(state.delayed, to_mask(pc.equal(state.delayed["source"], "half")))


def _duplicates(ended: pa.Table, halves: pa.Table) -> pa.Table:
    """Returns the ended halves that are duplicates of a set in the state, with its `unit_offset`.

    Input: ENDED, HALVES.
    """
    members = filter_rows(halves, members_with_id(halves, ended))
    if members.num_rows == 0:
        return _DUPLICATE_ROWS.empty_table()

    return select(_DUPLICATE_ROWS, _DUPLICATES, ended=only_sets(ended), halves=members)
