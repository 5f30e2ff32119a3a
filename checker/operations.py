"""Which operation ends a half.

An operation is valid for a half when it passes PROTOCOL.md's tests 1 to 6 in their order; of the
valid COMMITs and ROLLBACKs the one with the smallest op offset wins, for ever. What is not valid
changes nothing and is a conflict with the first reason that applies.

Source: RocketMQ's TransactionalMessageServiceImpl (fillOpRemoveMap) and
EndTransactionProcessor.checkPrepareMessage, without their order effects (PROTOCOL.md lists the
differences).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import CONFLICTS, NAMINGS
from checker.sql import run

_NAMINGS = """
SELECT queue_id, op_queue_offset, (position - 1)::INTEGER AS position,
  half_offsets[position] AS half_queue_offset, decision, producer_group,
  transaction_ids[position] AS transaction_id, cause, stored_at, $landed_at::BIGINT AS landed_at
FROM (SELECT *, unnest(generate_series(1, len(half_offsets))) AS position
      FROM operations WHERE error IS NULL)
"""

# Of many halves the named ones, before anything of them is looked at.
_NAMED_HALVES = """halves SEMI JOIN namings
    ON halves.queue_id = namings.queue_id AND halves.queue_offset = namings.half_queue_offset"""

# Tests 2 to 5. `known` has what stands at a half coordinate, `units` the sets in sight.
_VERDICTS = """
WITH known AS (
  SELECT queue_id, queue_offset, producer_group, transaction_id, unit_offset, 'PENDING' AS status,
         NULL::BIGINT AS winner_offset, discard_cause
  FROM {halves}
  UNION ALL
  SELECT queue_id, queue_offset, producer_group, transaction_id, queue_offset, 'UNREADABLE',
         NULL, NULL
  FROM new_halves WHERE error IS NOT NULL
  UNION ALL
  -- A duplicate stands for its set, and a member of a set that ended before for that set.
  SELECT m.queue_id, m.queue_offset, m.producer_group, m.transaction_id, m.unit_offset,
         coalesce(u.status, 'PENDING'), u.op_queue_offset, u.discard_cause
  FROM members m JOIN units u ON m.queue_id = u.queue_id AND m.unit_offset = u.unit_offset
  WHERE m.is_duplicate OR u.status IS NOT NULL
  UNION ALL
  SELECT queue_id, queue_offset, producer_group, transaction_id, queue_offset, status,
         op_queue_offset, NULL
  FROM ended WHERE tran_size IS NULL OR tran_size = 1 OR status = 'UNREADABLE'
)
SELECT n.*, k.unit_offset, k.status, k.winner_offset, k.discard_cause,
  CASE
    WHEN k.queue_offset IS NULL AND n.half_queue_offset >= coalesce(q.half_end, 0) THEN
      CASE WHEN q.halves_known_at - n.landed_at > $orphan_ttl_ms THEN 'orphan_expired'
           ELSE 'waits' END
    WHEN k.queue_offset IS NULL THEN 'unknown_half'
    WHEN k.status = 'UNREADABLE' THEN 'unreadable_half'
    WHEN n.producer_group <> k.producer_group THEN 'wrong_producer_group'
    WHEN n.transaction_id <> k.transaction_id THEN 'wrong_transaction_id'
    ELSE 'valid'
  END AS verdict
FROM namings n
LEFT JOIN known k ON n.queue_id = k.queue_id AND n.half_queue_offset = k.queue_offset
LEFT JOIN queues q ON n.queue_id = q.queue_id
"""

# One candidate an operation and unit, at its first position; the same half named again stays, to
# become a duplicate_end. The operation that ended a set before is not a candidate again.
_CANDIDATES = """
SELECT v.*, coalesce(u.is_complete, true) AS is_complete, u.transaction_id AS set_transaction_id,
  u.producer_group AS set_producer_group
FROM (
  SELECT *,
    row_number() OVER (PARTITION BY queue_id, op_queue_offset, unit_offset
                       ORDER BY position) AS naming_of_unit,
    row_number() OVER (PARTITION BY queue_id, op_queue_offset, half_queue_offset
                       ORDER BY position) AS naming_of_half
  FROM verdicts WHERE verdict = 'valid' AND decision <> 'UNKNOWN'
) v
LEFT JOIN units u ON v.queue_id = u.queue_id AND v.unit_offset = u.unit_offset
WHERE (v.naming_of_unit = 1 OR v.naming_of_half > 1)
  AND (v.winner_offset IS NULL OR v.winner_offset <> v.op_queue_offset OR v.naming_of_half > 1)
"""

_RANKED = """
WITH ranked AS (
  SELECT *, row_number() OVER (PARTITION BY queue_id, unit_offset
                               ORDER BY op_queue_offset, position) AS rank
  FROM candidates
),
heads AS (
  SELECT queue_id, unit_offset, op_queue_offset, position, decision, cause,
    discard_cause IS NOT NULL AS is_late,
    is_complete
    OR decision = 'ROLLBACK' AND NOT EXISTS (
      -- An operation of smaller offset that names a half still to come could end this set.
      FROM verdicts w
      WHERE w.verdict = 'waits' AND w.decision <> 'UNKNOWN' AND w.queue_id = ranked.queue_id
        AND w.op_queue_offset < ranked.op_queue_offset
        AND w.producer_group = ranked.set_producer_group
        AND (w.transaction_id IS NULL OR w.transaction_id = ranked.set_transaction_id)
    ) AS takes_effect
  FROM ranked
  WHERE rank = 1 AND status = 'PENDING' AND (discard_cause IS NULL OR $applies_late_ends)
)
SELECT r.queue_id, r.op_queue_offset, r.position, r.half_queue_offset, r.unit_offset, r.decision,
  CASE WHEN h.is_late THEN 'late_end' ELSE r.cause END AS cause,
  CASE
    WHEN r.status <> 'PENDING' THEN
      CASE WHEN (r.status = 'COMMITTED') = (r.decision = 'COMMIT') THEN 'duplicate_end'
           ELSE 'conflicting_end' END
    WHEN h.queue_id IS NULL THEN 'end_after_discard'
    WHEN NOT h.takes_effect THEN 'waits'
    WHEN r.rank = 1 THEN 'wins'
    WHEN r.decision = h.decision THEN 'duplicate_end'
    ELSE 'conflicting_end'
  END AS verdict
FROM ranked r
LEFT JOIN heads h ON r.queue_id = h.queue_id AND r.unit_offset = h.unit_offset
"""

# Units that several namings want to end, and sets: those must be ranked.
_CONTESTED = """
SELECT queue_id, unit_offset FROM verdicts WHERE verdict = 'valid' AND decision <> 'UNKNOWN'
GROUP BY queue_id, unit_offset HAVING count(*) > 1
UNION
SELECT queue_id, unit_offset FROM units
"""
# All others have one candidate, which is the first and needs nobody else.
_UNCONTESTED = """
SELECT v.queue_id, v.op_queue_offset, v.position, v.half_queue_offset, v.unit_offset, v.decision,
  CASE WHEN v.status = 'PENDING' AND v.discard_cause IS NOT NULL AND $applies_late_ends
    THEN 'late_end' ELSE v.cause END AS cause,
  CASE
    WHEN v.status <> 'PENDING' THEN
      CASE WHEN (v.status = 'COMMITTED') = (v.decision = 'COMMIT') THEN 'duplicate_end'
           ELSE 'conflicting_end' END
    WHEN v.discard_cause IS NOT NULL AND NOT $applies_late_ends THEN 'end_after_discard'
    ELSE 'wins'
  END AS verdict
FROM verdicts v ANTI JOIN contested c
  ON v.queue_id = c.queue_id AND v.unit_offset = c.unit_offset
WHERE v.verdict = 'valid' AND v.decision <> 'UNKNOWN'
  AND (v.winner_offset IS NULL OR v.winner_offset <> v.op_queue_offset)
"""
_OF_CONTESTED = """
SELECT v.* FROM verdicts v SEMI JOIN contested c
  ON v.queue_id = c.queue_id AND v.unit_offset = c.unit_offset
"""

_VERDICT_ROWS = pa.schema(
    [*NAMINGS, ("unit_offset", pa.int64()), ("status", pa.string()),
     ("winner_offset", pa.int64()), ("discard_cause", pa.string()), ("verdict", pa.string())]
)  # fmt: skip
_JUDGED_ROWS = pa.schema(
    [*(NAMINGS.field(name) for name in ("queue_id", "op_queue_offset", "position",
                                        "half_queue_offset")),
     ("unit_offset", pa.int64()), ("decision", pa.string()), ("cause", pa.string()),
     ("verdict", pa.string())]
)  # fmt: skip
_ANSWER_ROWS = pa.schema(
    [("queue_id", pa.int32()), ("unit_offset", pa.int64()), ("answered_at", pa.int64())]
)


def namings(operations: pa.Table, landed_at: int) -> pa.Table:
    """Take readable operations apart: one row for each half that each names.

    Input: OPERATIONS; `landed_at`: T of the epoch that lands them.
    Output: NAMINGS.
    """
    if operations.num_rows == 0:
        return NAMINGS.empty_table()
    if _name_one_each(operations):
        return _single_namings(operations, landed_at)
    return run(_NAMINGS, {"landed_at": landed_at}, operations=operations).cast(NAMINGS)


def _name_one_each(operations: pa.Table) -> bool:
    """Say whether every operation can be read and names one half, as most do."""
    lengths = [pc.list_value_length(operations[name])
               for name in ("half_offsets", "transaction_ids")]  # fmt: skip
    if lengths[0].null_count or operations["error"].null_count < operations.num_rows:
        return False
    return all(set(pc.unique(length).to_pylist()) <= {1, None} for length in lengths)


def _single_namings(operations: pa.Table, landed_at: int) -> pa.Table:
    count = operations.num_rows
    values = {
        "position": pa.repeat(pa.scalar(0, pa.int32()), count),
        "half_queue_offset": pc.list_element(operations["half_offsets"], 0),
        "transaction_id": pc.list_element(operations["transaction_ids"], 0),
        "landed_at": pa.repeat(pa.scalar(landed_at, pa.int64()), count),
    }
    columns = [values[name] if name in values else operations[name] for name in NAMINGS.names]
    return pa.table(columns, schema=NAMINGS)


def verdicts(
    namings: pa.Table,
    halves: pa.Table,
    new_halves: pa.Table,
    ended: pa.Table,
    members: pa.Table,
    units: pa.Table,
    queues: pa.Table,
    orphan_ttl_ms: int,
) -> pa.Table:
    """Put every naming to tests 2 to 5.

    Output: NAMINGS, the unit it names, its status, and `verdict`: `valid`, `waits` (its half is
    still to come) or the reason of a conflict.
    """
    if namings.num_rows == 0:
        return _VERDICT_ROWS.empty_table()
    has_many = halves.num_rows > 2 * namings.num_rows
    return run(
        _VERDICTS.format(halves=_NAMED_HALVES if has_many else "halves"),
        {"orphan_ttl_ms": orphan_ttl_ms},
        namings=namings,
        halves=halves,
        new_halves=new_halves,
        ended=ended,
        members=members,
        units=units,
        queues=queues,
    )


def judge(verdicts: pa.Table, units: pa.Table, applies_late_ends: bool) -> pa.Table:
    """Put valid COMMITs and ROLLBACKs to test 6: who wins, who waits, who comes too late.

    Input: the frames of `verdicts` and `set_units`.
    Output: queue_id, op_queue_offset, position, half_queue_offset, unit_offset, decision, cause
    and `verdict`: `wins`, `waits`, or the reason of a conflict.
    """
    if verdicts.num_rows == 0:
        return _JUDGED_ROWS.empty_table()
    values = {"applies_late_ends": applies_late_ends}
    contested = run(_CONTESTED, verdicts=verdicts, units=units)
    judged = run(_UNCONTESTED, values, verdicts=verdicts, contested=contested).cast(_JUDGED_ROWS)
    if contested.num_rows == 0:
        return judged
    wanted = run(_OF_CONTESTED, verdicts=verdicts, contested=contested)
    candidates = run(_CANDIDATES, verdicts=wanted, units=units)
    ranked = run(_RANKED, values, candidates=candidates, verdicts=verdicts)
    return pa.concat_tables([judged, ranked.cast(_JUDGED_ROWS)])


def answers(verdicts: pa.Table) -> pa.Table:
    """Give the producer's last answer (UNKNOWN) of each unit that can still be ended.

    Output: queue_id, unit_offset, answered_at (when the broker stored it).
    """
    if "UNKNOWN" not in pc.unique(verdicts["decision"]).to_pylist():
        return _ANSWER_ROWS.empty_table()
    return run(
        """
        SELECT queue_id, unit_offset, max(stored_at) AS answered_at
        FROM verdicts
        WHERE verdict = 'valid' AND decision = 'UNKNOWN' AND status = 'PENDING'
        GROUP BY queue_id, unit_offset
        """,
        verdicts=verdicts,
    )


def conflicts(operations: pa.Table, verdicts: pa.Table, judged: pa.Table) -> pa.Table:
    """Give each operation without effect, with its reason. Output: CONFLICTS."""
    if operations.num_rows == 0 and verdicts.num_rows == 0:
        return CONFLICTS.empty_table()
    return run(
        """
        SELECT queue_id, op_queue_offset, NULL::BIGINT AS half_queue_offset,
          'unreadable_operation' AS reason
        FROM operations WHERE error IS NOT NULL
        UNION ALL
        SELECT queue_id, op_queue_offset, half_queue_offset, verdict
        FROM verdicts WHERE verdict NOT IN ('valid', 'waits')
        UNION ALL
        SELECT queue_id, op_queue_offset, half_queue_offset, verdict
        FROM judged WHERE verdict NOT IN ('wins', 'waits')
        ORDER BY queue_id, op_queue_offset, half_queue_offset, reason
        """,
        operations=operations,
        verdicts=verdicts,
        judged=judged,
    )


def still_waiting(verdicts: pa.Table, judged: pa.Table) -> pa.Table:
    """Give the namings that wait for their half or, all of an operation's, for their set.

    Output: NAMINGS.
    """
    if verdicts.num_rows == 0:
        return NAMINGS.empty_table()
    return run(
        """
        SELECT v.queue_id, v.op_queue_offset, v.position, v.half_queue_offset, v.decision,
          v.producer_group, v.transaction_id, v.cause, v.stored_at, v.landed_at
        FROM verdicts v
        LEFT JOIN (SELECT DISTINCT queue_id, op_queue_offset, unit_offset FROM judged
                   WHERE verdict = 'waits') j
          ON v.queue_id = j.queue_id AND v.op_queue_offset = j.op_queue_offset
          AND v.unit_offset = j.unit_offset AND v.verdict = 'valid'
        WHERE v.verdict = 'waits' OR j.queue_id IS NOT NULL
        ORDER BY v.queue_id, v.op_queue_offset, v.position
        """,
        verdicts=verdicts,
        judged=judged,
    )
