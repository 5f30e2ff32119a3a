"""Which of the valid operations ends a half (test 8), and the verdict on all others.

Of the valid COMMITs and ROLLBACKs that name a unit the one with the smallest op offset wins, for
ever. An operation that comes too late is a conflict; one whose set is incomplete waits.

Source: docs/protocol/rules.md "Which operation ends a half", test 8; RocketMQ's
TransactionalMessageServiceImpl (fillOpRemoveMap), without its order effects.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import COMMITTED, Parameters
from checker.frames_ops.columns import (
    Mask,
    build_frame,
    case_when,
    equal_or_null,
    filter_rows,
    index_of,
    to_int64,
    to_mask,
)
from checker.frames_ops.sql import run
from checker.rules.decided_sets import decided_sets
from checker.rules.naming import VALID, VERDICT_ROWS, WAITS
from storage.schemas import row_keys

WINS: Final = "wins"


def _could_end(rollbacks: str, operations: str) -> str:
    """Returns the query for the sets of some ROLLBACKs that an operation before them could end.

    Two joins: the id is a key of the first. Most have one, and a group's would be compared with all
    others of it.
    """
    columns = """
    SELECT r.queue_id, r.unit_offset, r.set_name, r.set_deadline_at, w.op_queue_offset, w.cause,
      w.stored_at"""

    return f"""
  SELECT DISTINCT b.queue_id, b.unit_offset
  FROM ({columns}
    FROM {rollbacks} r
    JOIN {operations} w ON w.queue_id = r.queue_id AND w.producer_group = r.set_producer_group
      AND w.transaction_id = r.set_transaction_id AND w.op_queue_offset < r.op_queue_offset
    UNION ALL {columns}
    FROM {rollbacks} r
    JOIN (FROM {operations} WHERE transaction_id IS NULL) w
      ON w.queue_id = r.queue_id AND w.producer_group = r.set_producer_group
      AND w.op_queue_offset < r.op_queue_offset
  ) b
  LEFT JOIN decided d ON b.queue_id = d.queue_id AND b.op_queue_offset = d.op_queue_offset
    AND b.set_name = d.set_name
  WHERE d.queue_id IS NULL
    AND NOT ($reject_after_immunity AND b.cause = 'operation'
             AND coalesce(b.stored_at > b.set_deadline_at, false))"""


# All candidates of each unit, the one with the smallest op offset first.
_RANKED = f"""
WITH ranked AS (
  SELECT v.*, coalesce(u.is_complete, true) AS is_complete,
    u.transaction_id AS set_transaction_id, u.producer_group AS set_producer_group,
    u.deadline_at AS set_deadline_at,
    row_number() OVER (PARTITION BY v.queue_id, v.unit_offset
                       ORDER BY v.op_queue_offset, v.position) AS rank
  FROM ends v
  LEFT JOIN units u ON v.queue_id = u.queue_id AND v.unit_offset = u.unit_offset
),
rollbacks AS (
  FROM ranked WHERE rank = 1 AND decision = 'ROLLBACK' AND NOT is_complete
),
possible AS (
  -- Each operation once for each id, however many positions it has.
  SELECT DISTINCT w.queue_id, w.producer_group, w.transaction_id, w.op_queue_offset, w.cause,
    w.stored_at
  FROM waiting w
  WHERE w.decision <> 'UNKNOWN'
    AND w.is_signed IS DISTINCT FROM false
    AND NOT ($require_transaction_id AND w.transaction_id IS NULL AND w.cause <> 'operator')
),
nearest AS (
  SELECT queue_id, producer_group, transaction_id, min(op_queue_offset) AS op_queue_offset,
    arg_min(cause, op_queue_offset) AS cause, arg_min(stored_at, op_queue_offset) AS stored_at
  FROM possible GROUP BY queue_id, producer_group, transaction_id
),
-- An operation of smaller offset that names a half still to come could end a set. The first one
-- settles most sets; the others are compared only where it cannot.
behind_nearest AS (
  {_could_end("rollbacks", "nearest")}
),
unsettled AS (
  FROM rollbacks r ANTI JOIN behind_nearest b USING (queue_id, unit_offset)
),
behind AS (
  FROM behind_nearest
  UNION
  {_could_end("unsettled", "possible")}
),
first AS (
  SELECT r.queue_id, r.unit_offset, r.decision AS first_decision,
    r.is_complete OR r.decision = 'ROLLBACK' AND b.queue_id IS NULL AS takes_effect
  FROM ranked r
  LEFT JOIN behind b ON r.queue_id = b.queue_id AND r.unit_offset = b.unit_offset
  WHERE r.rank = 1
)
SELECT r.*, f.first_decision, f.takes_effect
FROM ranked r JOIN first f ON r.queue_id = f.queue_id AND r.unit_offset = f.unit_offset
"""

_RANKED_ROWS = pa.schema(
    [
        *VERDICT_ROWS,
        ("rank", pa.int64()),
        ("first_decision", pa.string()),
        ("takes_effect", pa.bool_()),
    ]
)
_JUDGED_COLUMNS = (
    "queue_id",
    "op_queue_offset",
    "position",
    "half_queue_offset",
    "unit_offset",
    "decision",
    "cause",
    "verdict",
)
_JUDGED_ROWS = pa.schema([VERDICT_ROWS.field(name) for name in _JUDGED_COLUMNS])


def choose_winner(verdicts: pa.Table, units: pa.Table, parameters: Parameters) -> pa.Table:
    """Returns the verdict of test 8 on valid COMMITs and ROLLBACKs.

    Input: the frames of `validate` and `set_units`.
    Output: queue_id, op_queue_offset, position, half_queue_offset, unit_offset, decision, cause and
    `verdict`: `wins`, `waits`, or the reason of a conflict.
    """
    is_end = to_mask(pc.equal(verdicts["verdict"], VALID))
    is_end &= ~to_mask(pc.equal(verdicts["decision"], "UNKNOWN"))
    ends = filter_rows(verdicts, is_end)

    applies_late_ends = parameters.late_end_policy == "apply"
    is_contested = _is_contested(ends, units)
    judged = _judge(_uncontested(filter_rows(ends, ~is_contested)), applies_late_ends)
    if not is_contested.any():
        return judged

    values = {
        "require_transaction_id": parameters.require_transaction_id,
        "reject_after_immunity": parameters.reject_after_immunity,
    }
    ranked = run(
        _RANKED,
        values,
        ends=filter_rows(ends, is_contested),
        units=units,
        # Of few rows SQL is not optimized: a join with all verdicts would be the square of them.
        waiting=filter_rows(verdicts, to_mask(pc.equal(verdicts["verdict"], WAITS))),
        decided=decided_sets(verdicts),
    )
    ranked = ranked.select(_RANKED_ROWS.names).cast(_RANKED_ROWS)

    return pa.concat_tables([judged, _judge(ranked, applies_late_ends)])


def _is_contested(ends: pa.Table, units: pa.Table) -> Mask:
    """Returns for each naming whether it must be ranked: its unit is a set, or has others."""
    named_units, index, counts = np.unique(
        row_keys(ends, "unit_offset"), return_inverse=True, return_counts=True
    )
    is_set = index_of(named_units, row_keys(units, "unit_offset")) >= 0

    return ((counts > 1) | is_set)[index]


def _uncontested(ends: pa.Table) -> pa.Table:
    """Returns the only naming of each unit as its first candidate. Output: _RANKED_ROWS."""
    return build_frame(
        _RANKED_ROWS, ends, rank=1, first_decision=ends["decision"], takes_effect=True
    )


def _judge(candidates: pa.Table, applies_late_ends: bool) -> pa.Table:
    """Returns the verdict on each candidate. Input: _RANKED_ROWS."""
    is_pending = to_mask(pc.equal(candidates["status"], "PENDING"))
    is_discarded = to_mask(candidates["discard_cause"].is_valid())
    is_commit = to_mask(pc.equal(candidates["decision"], "COMMIT"))
    agrees = to_mask(pc.equal(candidates["status"], COMMITTED)) == is_commit

    verdict = case_when(
        [
            (~is_pending & agrees, "duplicate_end"),
            (~is_pending, "conflicting_end"),
            (is_discarded & (not applies_late_ends), "end_after_discard"),
            (~to_mask(candidates["takes_effect"]), WAITS),
            (to_int64(candidates["rank"]) == 1, WINS),
            (equal_or_null(candidates["decision"], candidates["first_decision"]), "duplicate_end"),
        ],
        "conflicting_end",
    )

    is_late = is_pending & is_discarded & applies_late_ends
    cause = candidates["cause"]
    if is_late.any():
        cause = pc.if_else(pa.array(is_late), "late_end", cause)

    return build_frame(_JUDGED_ROWS, candidates, verdict=verdict, cause=cause)
