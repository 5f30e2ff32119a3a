"""Which halves belong to one transaction.

A set is the halves that share half queue, producer group, transaction id and TRAN_SIZE; TRAN_SIZE 1
makes a set of one. Its unit is named by its first landed half; a half without TRAN_SIZE is its own
unit. Of one TRAN_SEQ the smallest offset counts; later halves are duplicates.

Source: docs/protocol/rules.md "Sets". A transaction of RocketMQ has one message.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import ENDED, HALVES
from checker.frames_ops.columns import Mask, build_frame, filter_rows, to_mask
from checker.frames_ops.sql import run, select
from checker.rules.deadline import DEADLINE_SQL, deadlines

# The columns in which the halves of a set are equal.
SET_KEY: Final = "queue_id, producer_group, transaction_id, tran_size"

_MEMBERS = f"""
WITH members AS (
  SELECT queue_id, queue_offset, producer_group, transaction_id, tran_size, tran_seq,
         'PENDING' AS status, NULL::VARCHAR AS cause, NULL::BIGINT AS op_queue_offset,
         arm, discard_cause, deadline_at, false AS is_new
  FROM halves
  UNION ALL
  SELECT queue_id, queue_offset, producer_group, transaction_id, tran_size, tran_seq,
         'PENDING', NULL, NULL, NULL, NULL, {DEADLINE_SQL}, true
  FROM new_halves WHERE error IS NULL
  UNION ALL
  SELECT queue_id, queue_offset, producer_group, transaction_id, tran_size, tran_seq,
         status, cause, op_queue_offset, arm, NULL, {DEADLINE_SQL}, false
  FROM ended WHERE status <> 'UNREADABLE'
)
SELECT *,
  min(queue_offset) OVER members_of AS unit_offset,
  row_number() OVER (PARTITION BY {SET_KEY}, tran_seq ORDER BY queue_offset) > 1 AS is_duplicate
FROM members
WINDOW members_of AS (PARTITION BY {SET_KEY})
"""

_UNITS = """
SELECT queue_id, unit_offset,
  count(*) FILTER (NOT is_duplicate) = max(tran_size) AS is_complete,
  -- The outcome the whole set has already; NULL while it can still be ended. A duplicate counts for
  -- its first half only where that is below the floor.
  coalesce(max(status) FILTER (NOT is_duplicate AND status <> 'PENDING'
      AND cause <> 'duplicate_in_set'),
    max(status) FILTER (NOT is_duplicate AND status <> 'PENDING')) AS status,
  coalesce(max(cause) FILTER (NOT is_duplicate AND status <> 'PENDING'
      AND cause <> 'duplicate_in_set'),
    max(cause) FILTER (NOT is_duplicate AND status <> 'PENDING')) AS cause,
  max(op_queue_offset) FILTER (NOT is_duplicate AND status <> 'PENDING') AS op_queue_offset,
  max(arm) AS arm,
  max(discard_cause) AS discard_cause,
  first(deadline_at ORDER BY queue_offset) AS deadline_at,
  any_value(producer_group) AS producer_group,
  any_value(transaction_id) AS transaction_id
FROM members GROUP BY queue_id, unit_offset
"""

_MEMBER_ROWS = pa.schema(
    [
        *(field for field in ENDED if field.name not in ("stored_at", "immunity_ms")),
        HALVES.field("discard_cause"),
        HALVES.field("deadline_at"),
        ("is_new", pa.bool_()),
        ("unit_offset", pa.int64()),
        ("is_duplicate", pa.bool_()),
    ]
)
_UNIT_ROWS = pa.schema(
    [
        ("queue_id", pa.int32()),
        ("unit_offset", pa.int64()),
        ("is_complete", pa.bool_()),
        ("status", pa.string()),
        ("cause", pa.string()),
        ("op_queue_offset", pa.int64()),
        ("arm", pa.int32()),
        ("discard_cause", pa.string()),
        HALVES.field("deadline_at"),
        ("producer_group", pa.string()),
        ("transaction_id", pa.string()),
    ]
)


def is_member(halves: pa.Table) -> Mask:
    """Returns for each half whether it belongs to a set. Input: `tran_size`."""
    return to_mask(halves["tran_size"].is_valid())


def only_sets(halves: pa.Table) -> pa.Table:
    """Returns the halves that belong to sets."""
    return filter_rows(halves, is_member(halves))


def set_names(halves: pa.Table) -> pa.ChunkedArray:
    """Returns the name of each half's set in its half queue, `group/transaction id/TRAN_SIZE`.

    It is the same whichever halves of the set remain; null for a half alone.
    """
    members = only_sets(halves)
    if members.num_rows == 0:
        return pa.chunked_array([pa.nulls(halves.num_rows, pa.string())])

    return pc.if_else(
        halves["tran_size"].is_valid(),
        pc.binary_join_element_wise(
            halves["producer_group"],
            halves["transaction_id"],
            halves["tran_size"].cast(pa.string()),
            "/",
        ),
        pa.scalar(None, pa.string()),
    )


def members_with_id(halves: pa.Table, *with_ids: pa.Table) -> Mask:
    """Returns for each half whether it belongs to a set with the transaction id of another half.

    Input: `tran_size` and `transaction_id` of all frames.
    """
    ids = [pc.unique(only_sets(rows)["transaction_id"]) for rows in with_ids]
    in_set = is_member(halves)
    if not (in_set.any() and any(map(len, ids))):
        return np.zeros(halves.num_rows, bool)

    return in_set & to_mask(pc.is_in(halves["transaction_id"], pa.concat_arrays(ids)))


def set_members(halves: pa.Table, new_halves: pa.Table, ended: pa.Table) -> pa.Table:
    """Returns the halves of all sets that this epoch can touch, with their units.

    Input: HALVES, NEW_HALVES, ENDED; of a set that ended before, `ended` holds all members that are
    there (`presence.py`).
    Output: one row a half: the ENDED columns but for `stored_at` and `immunity_ms`, discard_cause,
    deadline_at, is_new, unit_offset, is_duplicate.
    """
    return select(
        _MEMBER_ROWS,
        _MEMBERS,
        halves=only_sets(halves),
        new_halves=only_sets(new_halves),
        ended=only_sets(ended),
    )


def set_units(members: pa.Table) -> pa.Table:
    """Returns one row a set: whether it is complete, and how it ended, if it did.

    Input: the frame of `set_members`.
    Output: queue_id, unit_offset, is_complete, status, cause, op_queue_offset, arm, discard_cause,
    deadline_at (of its first half), producer_group, transaction_id.
    """
    return select(_UNIT_ROWS, _UNITS, members=members)


def add_new_halves(
    halves: pa.Table, new_halves: pa.Table, members: pa.Table, units: pa.Table
) -> pa.Table:
    """Returns the halves that can still be ended, with the readable new ones.

    A new member takes over the arm, the discard and the deadline of its set. Duplicates and members
    of ended sets are left out.
    Input: HALVES, NEW_HALVES with `age_from_at`, and the frames of this module.
    Output: HALVES.
    """
    if new_halves.num_rows == 0:
        return halves
    if members.num_rows == 0:
        return pa.concat_tables([halves, _single_halves(new_halves)])

    added = run(
        f"""
        SELECT n.queue_id, n.queue_offset, n.producer_group, n.transaction_id, n.tran_size,
          n.tran_seq, coalesce(m.unit_offset, n.queue_offset) AS unit_offset,
          coalesce(u.arm, 0)::INTEGER AS arm, n.stored_at, n.age_from_at, n.real_topic,
          n.real_queue_id, n.delay_level, n.delay_ms, n.deliver_at, n.immunity_ms,
          CASE WHEN u.queue_id IS NULL THEN n.deadline_at ELSE u.deadline_at END AS deadline_at,
          0::INTEGER AS check_times,
          0::INTEGER AS unacknowledged, NULL::BIGINT AS checked_at, NULL::BIGINT AS last_answer_at,
          u.discard_cause, 0::INTEGER AS discards
        FROM (SELECT *, {DEADLINE_SQL} AS deadline_at FROM new_halves) n
        LEFT JOIN members m ON n.queue_id = m.queue_id AND n.queue_offset = m.queue_offset
        LEFT JOIN units u ON n.queue_id = u.queue_id AND m.unit_offset = u.unit_offset
        WHERE n.error IS NULL AND NOT coalesce(m.is_duplicate, false) AND u.status IS NULL
        ORDER BY n.queue_id, n.queue_offset
        """,
        new_halves=new_halves,
        members=members,
        units=units,
    )

    return pa.concat_tables([halves, added.cast(halves.schema)])


def _single_halves(new_halves: pa.Table) -> pa.Table:
    """Returns the readable new halves, if none of them is in a set. Output: HALVES."""
    rows = filter_rows(new_halves, to_mask(new_halves["error"].is_null()))

    values = dict.fromkeys(set(HALVES.names) - set(rows.column_names))
    values |= {"unit_offset": rows["queue_offset"], "deadline_at": deadlines(rows)}
    values |= dict.fromkeys(("arm", "check_times", "unacknowledged", "discards"), 0)

    return build_frame(HALVES, rows, **values)
