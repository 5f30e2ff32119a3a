"""How halves end: by which operation, once, and sets together."""

from __future__ import annotations

from storage.verify.invariant import Invariant, differing
from storage.verify.operations import CAUSE

_HALF = differing(
    {
        name: (f"o.{name}", f"h.{name}")
        for name in ("producer_group", "transaction_id", "real_topic")
    }
)

INVARIANTS = (
    Invariant(
        "outcomes_have_their_half",
        "Every outcome is of a half that was landed by then and can be read, with its group, "
        "transaction id and topic.",
        f"""
SELECT o.epoch, o.queue_id, o.queue_offset, o.outcome,
  CASE
    WHEN h.queue_id IS NULL THEN 'no half stands there'
    WHEN h.error IS NOT NULL THEN 'the half cannot be read: ' || h.error
    WHEN o.epoch < h.epoch THEN 'ended before it landed in epoch ' || h.epoch
    ELSE {_HALF} || ' of the half differ'
  END AS problem
FROM outcomes o
LEFT JOIN landed h ON o.queue_id = h.queue_id AND o.queue_offset = h.queue_offset
""",
    ),
    Invariant(
        "halves_end_once",
        "A half has at most one final outcome; before it at most one DISCARDED for each arm.",
        """
WITH ended AS (
  SELECT queue_id, queue_offset,
    count(*) FILTER (outcome <> 'DISCARDED') AS finals,
    count(*) FILTER (outcome = 'DISCARDED') AS discards,
    count(DISTINCT arm) FILTER (outcome = 'DISCARDED') AS arms,
    min(epoch) FILTER (outcome <> 'DISCARDED') AS end_epoch,
    max(epoch) FILTER (outcome = 'DISCARDED') AS discard_epoch,
    bool_and(outcome IN ('COMMITTED', 'ROLLED_BACK', 'DISCARDED')) AS is_known
  FROM outcomes GROUP BY queue_id, queue_offset
)
SELECT h.epoch, h.queue_id, h.queue_offset,
  CASE
    WHEN NOT e.is_known THEN 'an outcome that is none of the three'
    WHEN e.finals > 1 THEN concat(e.finals, ' final outcomes')
    WHEN e.discards > e.arms THEN concat(e.discards, ' discards in ', e.arms, ' arms')
    WHEN e.discard_epoch >= e.end_epoch THEN 'discarded when it had ended'
  END AS problem
FROM halves h LEFT JOIN ended e ON h.queue_id = e.queue_id AND h.queue_offset = e.queue_offset
""",
    ),
    Invariant(
        "arms_are_rearms",
        "The arm of an outcome or check is how often an operator had re-armed the half.",
        """
SELECT t.epoch, t.what, t.queue_id, t.queue_offset, t.arm,
  CASE WHEN t.arm IS DISTINCT FROM arm_at(u.rearm_epochs, t.epoch)
    THEN concat('armed again ', arm_at(u.rearm_epochs, t.epoch), ' times') END AS problem
FROM (
  SELECT epoch, 'outcomes' AS what, queue_id, queue_offset, arm FROM outcomes
  UNION ALL
  SELECT epoch, 'checks', queue_id, queue_offset, arm FROM checks
) t
JOIN halves h ON t.queue_id = h.queue_id AND t.queue_offset = h.queue_offset
JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
""",
    ),
    # A unit's end is that of its first half that ended. A COMMIT takes effect once the operation
    # and the whole set have landed.
    Invariant(
        "ends_have_their_operation",
        "Every COMMITTED and ROLLED_BACK names the operation that says so: it can be read, has the "
        "half's group and transaction id, and the end comes in the epoch that knows both.",
        f"""
WITH named AS (
  SELECT queue_id, unit_offset, op_queue_offset, min(resolve_epoch) AS resolve_epoch
  FROM fates WHERE test = 'end' AND NOT is_elsewhere GROUP BY ALL
),
late AS (
  SELECT DISTINCT u.queue_id, u.unit_offset
  FROM units u JOIN unit_discards d ON u.queue_id = d.queue_id AND u.unit_offset = d.unit_offset
  WHERE d.epoch < u.end_epoch AND d.arm = arm_at(u.rearm_epochs, u.end_epoch)
)
SELECT u.end_epoch AS epoch, u.queue_id, u.unit_offset AS queue_offset, u.outcome,
  u.op_queue_offset,
  CASE
    WHEN o.queue_id IS NULL THEN 'no such operation'
    WHEN n.op_queue_offset IS NULL THEN 'the operation does not name it validly'
    WHEN f.epoch < u.end_epoch
      THEN concat('the operation was turned down for it in epoch ', f.epoch, ', for ever')
    WHEN (o.decision = 'COMMIT') <> (u.outcome = 'COMMITTED')
      THEN 'the operation says ' || o.decision
    WHEN u.end_epoch < n.resolve_epoch THEN concat('ended before epoch ', n.resolve_epoch)
    WHEN u.outcome = 'COMMITTED'
      AND u.end_epoch IS DISTINCT FROM greatest(n.resolve_epoch, u.complete_epoch)
      THEN 'had to end in epoch ' || greatest(n.resolve_epoch, u.complete_epoch)
    WHEN u.size = 1 AND u.end_epoch <> n.resolve_epoch
      THEN 'had to end in epoch ' || n.resolve_epoch
    WHEN u.cause IS DISTINCT FROM CASE WHEN l.queue_id IS NULL THEN o.cause ELSE 'late_end' END
      THEN concat('the cause is ', CASE WHEN l.queue_id IS NULL THEN o.cause ELSE 'late_end' END,
        ', not ', u.cause)
    WHEN l.queue_id IS NOT NULL AND p.late_end_policy <> 'apply'
      THEN 'a late end, and late_end_policy was ' || p.late_end_policy
  END AS problem
FROM units u
JOIN plans p ON u.end_epoch = p.epoch
LEFT JOIN (SELECT *, {CAUSE} AS cause FROM op_once) o ON u.queue_id = o.queue_id
  AND u.op_queue_offset = o.queue_offset
LEFT JOIN named n ON u.queue_id = n.queue_id AND u.unit_offset = n.unit_offset
  AND u.op_queue_offset = n.op_queue_offset
LEFT JOIN late l ON u.queue_id = l.queue_id AND u.unit_offset = l.unit_offset
LEFT JOIN refusals f ON u.queue_id = f.queue_id AND u.unit_offset = f.unit_offset
  AND u.op_queue_offset = f.op_queue_offset
""",
    ),
    # A valid end of smaller op offset can lose in two cases, both too late: it was turned down
    # before, or the half that it names landed when the set was complete and had ended.
    Invariant(
        "first_valid_end_wins",
        "No valid end of smaller op offset stands before the one that won.",
        """
WITH smaller AS (
  SELECT u.queue_id, u.unit_offset, min(f.op_queue_offset) AS op_queue_offset
  FROM fates f
  JOIN units u ON f.queue_id = u.queue_id AND f.unit_offset = u.unit_offset
  WHERE f.test = 'end' AND NOT f.is_elsewhere AND f.op_queue_offset < u.op_queue_offset
    AND NOT f.is_refused AND NOT coalesce(f.rejected_epoch <= u.end_epoch, false)
    AND NOT coalesce(f.half_epoch > u.end_epoch AND u.complete_epoch <= u.end_epoch, false)
  GROUP BY u.queue_id, u.unit_offset
)
SELECT u.end_epoch AS epoch, u.queue_id, u.unit_offset AS queue_offset, u.op_queue_offset,
  'the valid end at op offset ' || s.op_queue_offset || ' is smaller' AS problem
FROM units u
LEFT JOIN smaller s ON u.queue_id = s.queue_id AND u.unit_offset = s.unit_offset
WHERE u.op_queue_offset IS NOT NULL
""",
    ),
    Invariant(
        "sets_end_together",
        "All members of a set end by one operation; a committed set is complete and ends in one "
        "epoch; duplicates are rolled back when they land.",
        """
SELECT h.epoch, h.queue_id, h.queue_offset, h.transaction_id, h.tran_size, h.tran_seq,
  CASE
    WHEN h.is_duplicate AND (h.outcome, h.cause, h.op_queue_offset, h.end_epoch)
        IS DISTINCT FROM ('ROLLED_BACK', 'duplicate_in_set', NULL, h.epoch)
      THEN 'a duplicate, not rolled back as one when it landed'
    WHEN h.is_duplicate THEN NULL
    WHEN (h.outcome, h.cause, h.op_queue_offset)
        IS DISTINCT FROM (u.outcome, u.cause, u.op_queue_offset)
      THEN concat('its set ended otherwise: ', coalesce(u.outcome, 'not at all'),
        ' by op offset ', coalesce(u.op_queue_offset::VARCHAR, '-'))
    WHEN h.end_epoch <> CASE h.outcome WHEN 'COMMITTED' THEN u.end_epoch
        ELSE greatest(u.end_epoch, h.epoch) END
      THEN 'its set ended in epoch ' || u.end_epoch
    WHEN h.outcome = 'COMMITTED' AND NOT coalesce(u.complete_epoch <= u.end_epoch, false)
      THEN 'committed before its set was complete'
  END AS problem
FROM halves h
JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
WHERE h.is_in_set
""",
    ),
)
