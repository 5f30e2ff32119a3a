"""Which halves of earlier epochs an epoch's input names: the shell looks them up before deciding.

A half that can still be ended is state. What is asked for here was ended before, or cannot be
read, or is not there at all.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import find, longs, take
from checker.frames import Inputs, State
from checker.operations import namings
from checker.sets import has_sets
from checker.sql import run
from checker.touched import is_named

_BY_PLACE = [("queue_id", "ascending"), ("queue_offset", "ascending")]


def halves_to_look_up(state: State, inputs: Inputs, half_ends: pa.Table) -> pa.Table:
    """Return half coordinates that operations name and that are neither state nor new.

    Input: half_ends: queue_id, half_end (where landing stood before this epoch).
    Output: queue_id, queue_offset.
    """
    named = pa.concat_tables(
        [
            table.select(["queue_id", "half_queue_offset"])
            for table in (state.waiting, namings(inputs.operations, 0))
        ]
    )
    places = _places(named)
    state_halves = state.halves.filter(pa.array(is_named(state.halves, places)))
    queue = take(half_ends, find(longs(places["queue_id"]), longs(half_ends["queue_id"])))
    is_earlier = longs(places["queue_offset"]) < longs(queue["half_end"])
    wanted = places.filter(pa.array(is_earlier & ~is_named(places, state_halves)))
    return wanted.group_by(wanted.column_names).aggregate([]).sort_by(_BY_PLACE)


def _places(named: pa.Table) -> pa.Table:
    return named.rename_columns(["queue_id", "queue_offset"])


def sets_to_look_up(state: State, inputs: Inputs, found: pa.Table) -> list[str]:
    """Return transaction ids of sets in sight that are not state: they may have ended before.

    Input: found: the halves that `halves_to_look_up` asked for (ENDED).
    """
    if not (has_sets(inputs.halves) or has_sets(found)):
        return []
    rows = run(
        """
        SELECT DISTINCT transaction_id FROM (
          SELECT queue_id, producer_group, transaction_id, tran_size FROM new_halves
          WHERE tran_size > 1 AND error IS NULL
          UNION
          SELECT queue_id, producer_group, transaction_id, tran_size FROM found
          WHERE tran_size > 1 AND status <> 'UNREADABLE') s
        ANTI JOIN (SELECT * FROM halves WHERE tran_size > 1) h
          ON s.queue_id = h.queue_id AND s.producer_group = h.producer_group
          AND s.transaction_id = h.transaction_id AND s.tran_size = h.tran_size
        ORDER BY transaction_id
        """,
        halves=state.halves.filter(pc.greater(state.halves["tran_size"], 1)),
        new_halves=inputs.halves,
        found=found,
    )
    return list(rows["transaction_id"].to_pylist())
