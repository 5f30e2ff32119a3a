"""What is there: the halves that an operation can still name.

A half is there while it is in the state, or stands at or above the floor of its queue; a plan fixes
the floor. In the state are:

- pending halves, and the duplicates of a pending set with it, however far the floor moves;
- delayed halves, until they are delivered or cancelled;
- discarded halves, until the floor has passed their whole set (its duplicates do not count), and as
  long as an operation waits for that.

Every rule that has to know asks here. What is not there decides nothing any more; a naming of it is
`below_floor`.

Source: PROTOCOL.md "Retention"; RocketMQ's fileReservedTime deletes what is old, whatever became of
it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import State
from checker.frames_ops.active import PLACE, is_named
from checker.frames_ops.columns import Mask, filter_rows, index_of, take, to_int64, to_mask
from checker.frames_ops.sql import run
from checker.rules.sets import SET_KEY, is_member, members_with_id
from storage.schemas import row_keys

# A pending set has nothing before its first landed half: what is left there of halves with the same
# key belonged to a set that ended.
_HANGING_ON = f"""
SELECT DISTINCT e.queue_id, e.queue_offset, h.unit_offset
FROM ended e JOIN halves h USING ({SET_KEY})
WHERE e.status <> 'UNREADABLE' AND e.queue_offset > h.unit_offset
"""


def is_below(rows: pa.Table, queues: pa.Table, offset: str = "queue_offset") -> Mask:
    """Returns for each row whether its place is below the floor of its queue.

    Input: `queue_id` and the column `offset`; `queue_id` and `floor` (null: 0).
    """
    if rows.num_rows == 0 or not to_int64(queues["floor"], null=0).any():
        return np.zeros(rows.num_rows, bool)
    queue = take(queues, index_of(to_int64(rows["queue_id"]), to_int64(queues["queue_id"])))
    return to_int64(rows[offset]) < to_int64(queue["floor"], null=0)


def is_there(ended: pa.Table, state: State, queues: pa.Table) -> Mask:
    """Returns for each half outside `state.halves` whether it is there all the same.

    Input: ENDED; the state; QUEUES. Halves of the state that leave it must have left.
    """
    found = ~is_below(ended, queues)
    if found.all():
        return found
    found |= is_named(ended, _delayed_halves(state))
    found |= is_named(ended, _hanging_on(ended, state.halves))
    return found


def can_be_there(named: pa.Table, state: State, queues: pa.Table) -> Mask:
    """Returns for each place whether a half that is no row of `state.halves` can be there.

    Some more are marked: behind the first half of a pending set stand its duplicates, and others.
    Input: queue_id, queue_offset; the state; QUEUES.
    """
    found = ~is_below(named, queues)
    if found.all():
        return found
    found |= is_named(named, _delayed_halves(state))
    members = filter_rows(state.halves, is_member(state.halves))
    first = members.group_by("queue_id").aggregate([("queue_offset", "min")])
    at = index_of(to_int64(named["queue_id"]), to_int64(first["queue_id"]))
    after = to_int64(take(first, at)["queue_offset_min"], null=-1)
    return found | ((at >= 0) & (to_int64(named["queue_offset"]) > after))


def drops_out(state: State, ended: pa.Table, queues: pa.Table) -> Mask:
    """Returns for each half of `state.halves` whether it leaves the state.

    Input: the state before the epoch; what the epoch looked up (ENDED); QUEUES.
    """
    halves = state.halves
    given_up = to_mask(halves["discard_cause"].is_valid())
    if not given_up.any():
        return given_up
    going = given_up & is_below(halves, queues)
    if going.any():
        units = row_keys(halves, "unit_offset")
        staying = [row_keys(filter_rows(halves, ~going), "unit_offset"), _waited_for(state, ended)]
        going &= index_of(units, np.concatenate(staying)) < 0
    return going


def _waited_for(state: State, ended: pa.Table) -> np.ndarray:
    """Returns the units, as numbers, that operations of the state name."""
    halves = state.halves
    waiting = state.waiting.select(["queue_id", "half_queue_offset"]).rename_columns(PLACE.names)
    if waiting.num_rows == 0:
        return np.zeros(0, np.int64)
    duplicates = _hanging_on(filter_rows(ended, is_named(ended, waiting)), halves)
    members = filter_rows(halves, is_named(halves, waiting))
    return np.concatenate([row_keys(members, "unit_offset"), row_keys(duplicates, "unit_offset")])


def _delayed_halves(state: State) -> pa.Table:
    return filter_rows(state.delayed, to_mask(pc.equal(state.delayed["source"], "half")))


def _hanging_on(ended: pa.Table, halves: pa.Table) -> pa.Table:
    """Returns the ended halves that are duplicates of a set in the state, with its `unit_offset`.

    Input: ENDED, HALVES.
    """
    members = filter_rows(halves, members_with_id(halves, ended))
    return run(_HANGING_ON, ended=filter_rows(ended, is_member(ended)), halves=members)
