"""The halves of earlier epochs that an epoch's input names, and that the shell looks up for it.

A half that can still be ended is in the state. All others were ended before, cannot be read, or are
missing: this module says which of them to look up.
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
    """Returns the named places where a half can be that has landed and is not in the state.

    Input: half_ends: queue_id, half_end (where landing stood before this epoch), floor.
    Output: queue_id, queue_offset.
    """
    waiting = state.waiting.select(["queue_id", "half_queue_offset"]).rename_columns(PLACE.names)
    named = pa.concat_tables([waiting, named_halves(inputs.operations)])

    queue = take(half_ends, index_of(to_int64(named["queue_id"]), to_int64(half_ends["queue_id"])))
    is_earlier = to_int64(named["queue_offset"]) < to_int64(queue["half_end"])
    named = filter_rows(named, is_earlier)
    named = filter_rows(named, can_be_there(named, state, half_ends))

    state_halves = filter_rows(state.halves, is_named(state.halves, named))
    named = filter_rows(named, ~is_named(named, state_halves))

    return named.group_by(named.column_names).aggregate([]).sort_by(_BY_PLACE)


def sets_to_look_up(
    state: State, inputs: Inputs, half_ends: pa.Table, ended: pa.Table
) -> list[str]:
    """Returns the transaction ids of sets outside the state: they can have ended before.

    Input: as `halves_to_look_up`; ended: the rows of the halves that it returned (ENDED).
    """
    is_going = drops_out(state, ended, half_ends)

    state = replace(state, halves=filter_rows(state.halves, ~is_going))
    ended = only_sets(filter_rows(ended, is_there(ended, state, half_ends)))

    new_halves = only_sets(inputs.halves)
    if not (new_halves.num_rows or ended.num_rows):
        return []

    halves = filter_rows(state.halves, members_with_id(state.halves, new_halves, ended))

    rows = run(
        f"""
        SELECT DISTINCT transaction_id FROM (
          SELECT {SET_KEY} FROM new_halves WHERE error IS NULL
          UNION
          SELECT {SET_KEY} FROM ended WHERE status <> 'UNREADABLE')
        ANTI JOIN halves USING ({SET_KEY})
        ORDER BY transaction_id
        """,
        halves=halves,
        new_halves=new_halves,
        ended=ended,
    )

    return list(rows["transaction_id"].to_pylist())
