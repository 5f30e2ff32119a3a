"""The floor of each half queue: below it what was decided is deleted, and decides nothing any more.

A plan fixes the floor. A half below it that is pending, waiting or delayed is state, and stays,
however old. A discarded one leaves the state; nothing stands at its place then.

Source: PROTOCOL.md "Retention"; RocketMQ's fileReservedTime deletes what is old, whatever became of
it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from checker.match.columns import Mask, find, longs, take, truth, where
from storage.schemas import places


def is_below(rows: pa.Table, queues: pa.Table, offset: str = "queue_offset") -> Mask:
    """Returns for each row whether its place is below the floor of its queue.

    Input: `queue_id` and the column `offset`; `queue_id` and `floor` (null: 0).
    """
    if rows.num_rows == 0 or not longs(queues["floor"], null=0).any():
        return np.zeros(rows.num_rows, bool)
    queue = take(queues, find(longs(rows["queue_id"]), longs(queues["queue_id"])))
    return longs(rows[offset]) < longs(queue["floor"], null=0)


def leaves(halves: pa.Table, queues: pa.Table) -> Mask:
    """Returns for each half whether it leaves the state: given up, its whole set below the floor.

    Input: HALVES, QUEUES.
    """
    given_up = truth(halves["discard_cause"].is_valid())
    if not given_up.any():
        return given_up
    going = given_up & is_below(halves, queues)
    if going.any():
        staying = places(where(halves, ~going), "unit_offset")
        going &= find(places(halves, "unit_offset"), staying) < 0
    return going
