"""The halves of earlier epochs that an epoch's input names, and that the shell looks up for it.

A half that can still be ended is state. All others were ended before, cannot be read, or are
missing: they are asked for here.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from checker.frames import Inputs, State
from checker.frames_ops.active import PLACE, is_named, named_halves
from checker.frames_ops.columns import filter_rows, index_of, take, to_int64
from checker.frames_ops.sql import run
from checker.rules.presence import can_be_there, drops_out, is_there
from checker.rules.sets import SET_KEY, members_with_id, only_sets

_BY_PLACE = [("queue_id", "ascending"), ("queue_offset", "ascending")]


def halves_to_look_up(state: State, inputs: Inputs, half_ends: pa.Table) -> pa.Table:
    """Returns the named places below the landed ends where a half can be there that is no state.

    Input: half_ends: queue_id, half_end (where landing stood before this epoch), floor.
    Output: queue_id, queue_offset.
    """
    waiting = state.waiting.select(["queue_id", "half_queue_offset"]).rename_columns(PLACE.names)
    places = pa.concat_tables([waiting, named_halves(inputs.operations)])
    queue = take(half_ends, index_of(to_int64(places["queue_id"]), to_int64(half_ends["queue_id"])))
    is_earlier = to_int64(places["queue_offset"]) < to_int64(queue["half_end"])
    wanted = filter_rows(places, is_earlier)
    wanted = filter_rows(wanted, can_be_there(wanted, state, half_ends))
    state_halves = filter_rows(state.halves, is_named(state.halves, wanted))
    wanted = filter_rows(wanted, ~is_named(wanted, state_halves))
    return wanted.group_by(wanted.column_names).aggregate([]).sort_by(_BY_PLACE)


def sets_to_look_up(
    state: State, inputs: Inputs, half_ends: pa.Table, found: pa.Table
) -> list[str]:
    """Returns the transaction ids of sets that are not state: they can have ended before.

    Input: as `halves_to_look_up`; found: the halves that it asked for (ENDED).
    """
    is_going = drops_out(state, found, half_ends)
    state = replace(state, halves=filter_rows(state.halves, ~is_going))
    found = only_sets(filter_rows(found, is_there(found, state, half_ends)))
    new_halves = only_sets(inputs.halves)
    if not (new_halves.num_rows or found.num_rows):
        return []
    halves = filter_rows(state.halves, members_with_id(state.halves, new_halves, found))
    rows = run(
        f"""
        SELECT DISTINCT transaction_id FROM (
          SELECT {SET_KEY} FROM new_halves WHERE error IS NULL
          UNION
          SELECT {SET_KEY} FROM found WHERE status <> 'UNREADABLE')
        ANTI JOIN halves USING ({SET_KEY})
        ORDER BY transaction_id
        """,
        halves=halves,
        new_halves=new_halves,
        found=found,
    )
    return list(rows["transaction_id"].to_pylist())
