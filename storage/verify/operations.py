"""The fate of every naming by the rules, and the invariants about it.

Tests 1 to 7 of docs/protocol/rules.md are made from `half` and `op`, test 8 from the end of the
unit. `fates` has for each naming the reason that it has to have in `conflicts`, if any.
"""

from __future__ import annotations

from storage.verify.invariant import Invariant

CAUSE = """CASE WHEN actor IS NOT NULL THEN 'operator' WHEN from_check THEN 'check_answer'
  ELSE 'operation' END"""
FRAMES = f"""
-- Every half that a readable operation names. From `resolve_epoch` on the naming can be judged: the
-- operation has landed, and so has the half's place, with a half or without one.
CREATE TABLE namings AS
WITH named AS (
  SELECT queue_id, queue_offset AS op_queue_offset, epoch AS op_epoch, stored_ms, producer_group,
    decision, {CAUSE} AS cause, is_signed, len(half_offsets) > 1 AS is_of_several,
    unnest(generate_series(0, len(half_offsets) - 1))::INTEGER AS position,
    unnest(half_offsets) AS half_queue_offset, unnest(transaction_ids) AS transaction_id
  FROM op_once WHERE error IS NULL
),
scoped AS (  -- `is_whole`: all halves that the operation names are judged
  SELECT * EXCLUDE (is_in_scope),
    NOT is_of_several OR bool_and(is_in_scope) OVER (PARTITION BY queue_id, op_queue_offset)
      AS is_whole
  FROM (SELECT *, in_scope('half', queue_id, half_queue_offset) AS is_in_scope FROM named)
  QUALIFY is_in_scope
),
joined AS (
  SELECT n.*, h.queue_id IS NOT NULL AS is_there, h.epoch AS half_epoch, h.error, h.unit_offset,
    h.is_duplicate, h.producer_group AS half_group, h.transaction_id AS half_transaction_id,
    CASE WHEN h.is_in_set AND h.error IS NULL
      THEN concat_ws('/', h.producer_group, h.transaction_id, h.tran_size) END AS set_name,
    u.immunity_ms AS unit_immunity_ms, n.stored_ms - u.stored_ms AS after_ms
  FROM scoped n
  LEFT JOIN landed h ON n.queue_id = h.queue_id AND n.half_queue_offset = h.queue_offset
  LEFT JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
),
passed AS (  -- the epoch that brought the landed end of a half queue so far
  SELECT queue_id, to_offset, min(epoch) AS epoch FROM ranges WHERE kind = 'half'
  GROUP BY queue_id, to_offset
),
resolved AS (
  SELECT *, greatest(op_epoch, half_epoch) AS resolve_epoch FROM joined WHERE is_there
  UNION ALL
  SELECT j.*, CASE WHEN p.epoch IS NOT NULL THEN greatest(j.op_epoch, p.epoch) END
  FROM (FROM joined WHERE NOT is_there) j
  ASOF LEFT JOIN passed p ON j.queue_id = p.queue_id AND j.half_queue_offset < p.to_offset
),
expired AS (
  SELECT queue_id, op_queue_offset, half_queue_offset, min(epoch) AS epoch
  FROM conflicts WHERE reason = 'orphan_expired' GROUP BY ALL
)
SELECT r.* EXCLUDE (error, half_group, half_transaction_id, unit_immunity_ms, after_ms),
  x.epoch AS expired_epoch,
  -- Its operation is decided for its set at another position, that named it before.
  decides_once() AND r.is_of_several AND r.set_name IS NOT NULL AND x.epoch IS NULL
    AND row_number() OVER (PARTITION BY r.queue_id, r.op_queue_offset, r.set_name, x.epoch
                           ORDER BY r.resolve_epoch, r.position) > 1 AS is_elsewhere,
  CASE
    WHEN x.epoch IS NOT NULL THEN 'orphan_expired'
    WHEN r.resolve_epoch IS NULL THEN 'waits'
    WHEN NOT r.is_there THEN 'unknown_half'
    WHEN r.error IS NOT NULL THEN 'unreadable_half'
    WHEN r.producer_group <> r.half_group THEN 'wrong_producer_group'
    WHEN NOT r.is_signed THEN 'bad_signature'
    WHEN r.transaction_id IS NULL AND r.cause <> 'operator' AND p.require_transaction_id
      THEN 'no_transaction_id'
    WHEN r.transaction_id <> r.half_transaction_id THEN 'wrong_transaction_id'
    WHEN r.decision <> 'UNKNOWN' AND r.cause = 'operation' AND p.reject_after_immunity
      AND r.after_ms > r.unit_immunity_ms THEN 'after_immunity'
    WHEN r.decision = 'UNKNOWN' THEN 'answer'
    ELSE 'end'
  END AS test
FROM resolved r
LEFT JOIN plans p ON r.resolve_epoch = p.epoch
LEFT JOIN expired x ON r.queue_id = x.queue_id AND r.op_queue_offset = x.op_queue_offset
  AND r.half_queue_offset = x.half_queue_offset;

-- Namings that `conflicts` turned down because their unit was discarded, each with the epoch.
CREATE TABLE rejected AS
SELECT n.queue_id, n.op_queue_offset, n.position, min(c.epoch) AS epoch
FROM namings n
JOIN halves h ON n.queue_id = h.queue_id AND n.unit_offset = h.unit_offset
JOIN conflicts c ON n.queue_id = c.queue_id AND n.op_queue_offset = c.op_queue_offset
  AND h.queue_offset = c.half_queue_offset
WHERE n.test = 'end' AND c.reason = 'end_after_discard' AND c.epoch >= n.resolve_epoch
GROUP BY n.queue_id, n.op_queue_offset, n.position;

-- The sets for which an operation was turned down. This holds for ever, whatever lands later.
CREATE TABLE refusals AS
SELECT n.queue_id, n.op_queue_offset, n.unit_offset, min(j.epoch) AS epoch
FROM rejected j JOIN namings n ON j.queue_id = n.queue_id
  AND j.op_queue_offset = n.op_queue_offset AND j.position = n.position
GROUP BY n.queue_id, n.op_queue_offset, n.unit_offset;

-- The fate of each naming, and its epoch. An operation is decided for a set once. Another naming of
-- the same half alone is judged for itself. Before rule version 5 an operation named a set once
-- among those of its positions that are judged together.
CREATE TABLE fates AS
WITH judged AS (
  SELECT n.*, u.end_epoch, u.outcome, u.complete_epoch, j.epoch AS rejected_epoch,
    coalesce(s.epoch < n.resolve_epoch, false) AS is_refused,
    u.op_queue_offset = n.op_queue_offset AS is_winner,
    CASE
      WHEN n.is_elsewhere THEN n.resolve_epoch
      WHEN n.test = 'orphan_expired' THEN n.expired_epoch
      WHEN n.test = 'end' THEN CASE WHEN s.epoch < n.resolve_epoch THEN n.resolve_epoch
        WHEN j.epoch IS NOT NULL THEN j.epoch
        WHEN u.end_epoch IS NOT NULL THEN greatest(n.resolve_epoch, u.end_epoch) END
      ELSE n.resolve_epoch END AS judged_epoch
  FROM namings n
  LEFT JOIN units u ON n.queue_id = u.queue_id AND n.unit_offset = u.unit_offset
  LEFT JOIN rejected j ON n.queue_id = j.queue_id AND n.op_queue_offset = j.op_queue_offset
    AND n.position = j.position
  LEFT JOIN refusals s ON n.queue_id = s.queue_id AND n.op_queue_offset = s.op_queue_offset
    AND n.unit_offset = s.unit_offset
),
ranked AS (
  SELECT *, true AS is_first, false AS is_again FROM judged WHERE NOT is_of_several
  UNION ALL
  SELECT *,
    row_number() OVER (PARTITION BY queue_id, op_queue_offset, test, unit_offset, judged_epoch,
                       is_elsewhere ORDER BY position) = 1,
    row_number() OVER (PARTITION BY queue_id, op_queue_offset, test, half_queue_offset,
                       is_elsewhere ORDER BY position) > 1
  FROM judged WHERE is_of_several
)
SELECT * EXCLUDE (is_first, is_again),
  CASE
    WHEN is_elsewhere THEN 'absorbed'
    WHEN test <> 'end' THEN test
    WHEN is_refused THEN 'absorbed'
    WHEN judged_epoch IS NULL AND complete_epoch IS NULL THEN 'waits_for_set'
    WHEN judged_epoch IS NULL THEN 'none'
    WHEN rejected_epoch IS NULL AND is_winner AND is_again THEN 'duplicate_end'
    WHEN rejected_epoch IS NULL AND is_winner THEN
      CASE WHEN is_first AND judged_epoch = end_epoch THEN 'wins' ELSE 'absorbed' END
    WHEN NOT is_first AND NOT is_again THEN 'absorbed'
    WHEN rejected_epoch IS NOT NULL THEN 'end_after_discard'
    WHEN (decision = 'COMMIT') = (outcome = 'COMMITTED') THEN 'duplicate_end'
    ELSE 'conflicting_end'
  END AS fate
FROM ranked;

DROP TABLE namings;

-- The rows that `conflicts` has to have.
CREATE TABLE expected_conflicts AS
SELECT queue_id, op_queue_offset, half_queue_offset, fate AS reason, judged_epoch AS epoch,
  count(*) AS times
FROM fates
WHERE fate NOT IN ('wins', 'absorbed', 'answer', 'waits', 'waits_for_set', 'none')
GROUP BY ALL
UNION ALL
SELECT queue_id, queue_offset, -1, 'unreadable_operation', epoch, 1
FROM op_once WHERE error IS NOT NULL
"""


INVARIANTS = (
    Invariant(
        "namings_accounted",
        "Every half that an operation names is ended by it, or the naming is a conflict, was heard "
        "(UNKNOWN), stands for the same set, or still waits.",
        """
WITH expected AS (
  SELECT queue_id, op_queue_offset, half_queue_offset, sum(times) AS times, any_value(reason) AS
    reason
  FROM expected_conflicts GROUP BY ALL
),
recorded AS (
  SELECT queue_id, op_queue_offset, coalesce(half_queue_offset, -1) AS half_queue_offset,
    count(*) AS times
  FROM conflicts GROUP BY ALL
),
incomplete AS (
  SELECT e.*, coalesce(f.times, 0) AS recorded_times FROM expected e LEFT JOIN recorded f
    ON e.queue_id = f.queue_id AND e.op_queue_offset = f.op_queue_offset
    AND e.half_queue_offset = f.half_queue_offset
  WHERE coalesce(f.times, 0) < e.times
),
now AS (
  SELECT k.queue_id, k.known_ms, p.orphan_operation_ttl_ms FROM known k
  JOIN plans p ON k.epoch = p.epoch
  WHERE k.what = 'half' AND k.epoch = (SELECT max(epoch) FROM plans)
),
early AS (  -- the first operations that could still end a set, by what they name
  SELECT queue_id, producer_group, transaction_id, min(op_queue_offset) AS op_queue_offset
  FROM fates WHERE fate = 'waits' AND decision <> 'UNKNOWN' AND coalesce(is_signed, true)
  GROUP BY ALL
),
heads AS (
  SELECT queue_id, unit_offset, min(op_queue_offset) AS op_queue_offset
  FROM fates WHERE fate = 'waits_for_set' GROUP BY ALL
),
idle AS (
  SELECT f.queue_id, f.op_queue_offset, f.position
  FROM fates f
  JOIN halves u ON f.queue_id = u.queue_id AND f.unit_offset = u.queue_offset
  JOIN heads h ON f.queue_id = h.queue_id AND f.unit_offset = h.unit_offset
  LEFT JOIN early e ON f.queue_id = e.queue_id AND u.producer_group = e.producer_group
    AND u.transaction_id = e.transaction_id
  LEFT JOIN (FROM early WHERE transaction_id IS NULL) a ON f.queue_id = a.queue_id
    AND u.producer_group = a.producer_group
  WHERE f.fate = 'waits_for_set' AND f.decision = 'ROLLBACK'
    AND least(h.op_queue_offset, e.op_queue_offset, a.op_queue_offset) = f.op_queue_offset
)
SELECT f.op_epoch AS epoch, f.queue_id, f.op_queue_offset, f.position, f.half_queue_offset,
  CASE
    WHEN s.times IS NOT NULL THEN concat(s.recorded_times, ' of ', s.times, ' rows in conflicts (',
      s.reason, ')')
    WHEN f.fate = 'none' THEN 'valid, and has not ended its half'
    WHEN i.position IS NOT NULL THEN 'a ROLLBACK that waits for nothing'
    WHEN f.fate = 'waits' AND n.known_ms - p.at_ms > n.orphan_operation_ttl_ms
      THEN 'waits longer than orphan_operation_ttl_ms'
  END AS problem
FROM fates f
JOIN plans p ON f.op_epoch = p.epoch
LEFT JOIN incomplete s ON f.queue_id = s.queue_id AND f.op_queue_offset = s.op_queue_offset
  AND f.half_queue_offset = s.half_queue_offset
LEFT JOIN now n ON f.queue_id = n.queue_id
LEFT JOIN idle i ON f.queue_id = i.queue_id AND f.op_queue_offset = i.op_queue_offset
  AND f.position = i.position
UNION ALL
SELECT o.epoch, o.queue_id, o.queue_offset, NULL, NULL,
  CASE WHEN s.times IS NOT NULL THEN 'cannot be read, and has no row in conflicts' END
FROM op_once o
LEFT JOIN incomplete s ON o.queue_id = s.queue_id AND o.queue_offset = s.op_queue_offset
  AND s.half_queue_offset = -1
WHERE o.error IS NOT NULL
""",
    ),
    Invariant(
        "conflicts_are_true",
        "Every conflict is one naming, or one unreadable operation, and its reason holds.",
        """
WITH recorded AS (
  SELECT queue_id, op_queue_offset, half_queue_offset, reason, epoch, count(*) AS times
  FROM conflicts GROUP BY ALL
)
SELECT c.epoch, c.queue_id, c.op_queue_offset, c.half_queue_offset, c.reason,
  CASE
    WHEN e.times IS NULL THEN 'no naming came to this in this epoch'
    WHEN c.times > e.times THEN concat(c.times, ' rows for ', e.times, ' namings')
    WHEN c.reason = 'orphan_expired' AND NOT coalesce(c.half_queue_offset >= r.to_offset, true)
      THEN 'its half had landed'
    WHEN c.reason = 'orphan_expired'
      AND NOT coalesce(k.known_ms - t.at_ms > p.orphan_operation_ttl_ms, false)
      THEN 'it had not waited for orphan_operation_ttl_ms'
    WHEN c.reason = 'end_after_discard' AND p.late_end_policy <> 'reject'
      THEN 'late_end_policy was ' || p.late_end_policy
    WHEN c.reason = 'end_after_discard' AND NOT EXISTS (
      FROM unit_discards d
      WHERE d.queue_id = u.queue_id AND d.unit_offset = u.unit_offset AND d.epoch < c.epoch
        AND d.arm = arm_at(u.rearm_epochs, c.epoch)) THEN 'its unit was not discarded'
  END AS problem
FROM recorded c
JOIN plans p ON c.epoch = p.epoch
LEFT JOIN expected_conflicts e ON c.queue_id = e.queue_id AND c.op_queue_offset = e.op_queue_offset
  AND coalesce(c.half_queue_offset, -1) = e.half_queue_offset AND c.reason = e.reason
  AND c.epoch = e.epoch
LEFT JOIN op_once o ON c.queue_id = o.queue_id AND c.op_queue_offset = o.queue_offset
LEFT JOIN plans t ON o.epoch = t.epoch
LEFT JOIN ranges r ON r.kind = 'half' AND c.queue_id = r.queue_id AND c.epoch = r.epoch
LEFT JOIN known k ON k.what = 'half' AND c.queue_id = k.queue_id AND c.epoch = k.epoch
LEFT JOIN halves h ON c.queue_id = h.queue_id AND c.half_queue_offset = h.queue_offset
LEFT JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
""",
    ),
)
