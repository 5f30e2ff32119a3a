"""Snapshots of what still waits, and how far consumers are."""

from __future__ import annotations

from storage.verify.invariant import Invariant, differing

# What has to stand in each snapshot: halves that landed and had not ended.
_ALIVE = """
CREATE TABLE alive AS
WITH snapshots AS (
  SELECT DISTINCT c.epoch, p.at_ms FROM commits c JOIN plans p ON c.epoch = p.epoch
  WHERE c.counts['snapshot'] = 1
)
SELECT s.epoch AS snapshot, h.*, u.rearm_epochs, u.rearm_ats,
  arm_at(u.rearm_epochs, s.epoch) AS arm
FROM snapshots s
JOIN halves h ON h.epoch <= s.epoch AND coalesce(h.end_epoch, 9223372036854775807) > s.epoch
JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
"""
FRAMES = (_ALIVE,)

_HALVES_ARE_PENDING_OR_ENDED = """
WITH rows AS (SELECT epoch, queue_id, queue_offset, count(*) AS n FROM pending GROUP BY ALL)
SELECT coalesce(a.snapshot, r.epoch) AS epoch, coalesce(a.queue_id, r.queue_id) AS queue_id,
  coalesce(a.queue_offset, r.queue_offset) AS queue_offset,
  CASE
    WHEN r.n IS NULL THEN 'neither ended nor in the snapshot'
    WHEN a.snapshot IS NULL THEN 'in the snapshot, and ended or not landed'
    WHEN r.n > 1 THEN concat(r.n, ' times in the snapshot')
  END AS problem
FROM alive a
FULL JOIN rows r ON a.snapshot = r.epoch AND a.queue_id = r.queue_id
  AND a.queue_offset = r.queue_offset
"""

_PENDING_COLUMNS = differing(
    {
        **{
            name: (f"r.{name}", f"a.{name}")
            for name in (
                "arm", "producer_group", "transaction_id", "tran_size", "tran_seq", "real_topic",
                "real_queue_id", "delay_level", "deliver_ms", "immunity_ms",
            )
        },
        "stored_at": ("r.stored_ms", "a.since_ms"),
        "check_times": ("r.check_times", "coalesce(c.times, 0)"),
        "checked_at": ("r.checked_ms", "c.sent_ms"),
        "last_answer_at": ("r.last_answer_ms", "w.answered_ms"),
        "discard_cause": ("r.discard_cause", "d.cause"),
        "discards": ("r.discards", "coalesce(d.times, 0)"),
    }
)  # fmt: skip
_PENDING_IS_STATE = f"""
WITH timed AS (
  SELECT a.*, CASE WHEN a.arm > 0 AND a.epoch < a.rearm_epochs[a.arm] THEN a.rearm_ats[a.arm]
    ELSE a.stored_ms END AS since_ms
  FROM alive a
),
asked AS (
  SELECT a.snapshot, a.queue_id, a.queue_offset, count(*) FILTER (c.acknowledged) AS times,
    max(c.sent_ms) AS sent_ms
  FROM alive a JOIN attempts c ON a.queue_id = c.queue_id AND a.queue_offset = c.queue_offset
    AND a.arm = c.arm_then AND c.epoch <= a.snapshot
  GROUP BY ALL
),
given_up AS (
  SELECT a.snapshot, a.queue_id, a.queue_offset, count(*) AS times,
    max(o.cause) FILTER (arm_at(a.rearm_epochs, o.epoch) = a.arm) AS cause
  FROM alive a JOIN outcomes o ON a.queue_id = o.queue_id AND a.queue_offset = o.queue_offset
    AND o.outcome = 'DISCARDED' AND o.epoch <= a.snapshot
  GROUP BY ALL
),
answered AS (
  SELECT a.snapshot, a.queue_id, a.queue_offset, max(f.stored_ms) AS answered_ms
  FROM alive a JOIN fates f ON a.queue_id = f.queue_id AND a.unit_offset = f.unit_offset
    AND f.fate = 'heard' AND f.resolve_epoch <= a.snapshot
  WHERE a.queue_offset = a.unit_offset
  GROUP BY ALL
)
SELECT r.epoch, r.queue_id, r.queue_offset,
  {_PENDING_COLUMNS} || ' is not what the other tables say' AS problem
FROM (SELECT DISTINCT ON (epoch, queue_id, queue_offset) * FROM pending) r
JOIN timed a ON r.epoch = a.snapshot AND r.queue_id = a.queue_id AND r.queue_offset = a.queue_offset
LEFT JOIN asked c ON r.epoch = c.snapshot AND r.queue_id = c.queue_id
  AND r.queue_offset = c.queue_offset
LEFT JOIN given_up d ON r.epoch = d.snapshot AND r.queue_id = d.queue_id
  AND r.queue_offset = d.queue_offset
LEFT JOIN answered w ON r.epoch = w.snapshot AND r.queue_id = w.queue_id
  AND r.queue_offset = w.queue_offset
"""

_WAITING_COLUMNS = differing(
    {
        **{
            name: (f"r.{name}", f"w.{name}")
            for name in ("half_queue_offset", "decision", "producer_group", "transaction_id",
                         "cause")
        },
        "stored_at": ("r.stored_ms", "w.stored_ms"),
        "landed_at": ("r.landed_ms", "w.landed_ms"),
    }
)  # fmt: skip
# Of an operation that waits for its set one position is enough.
_WAITING_IS_STATE = f"""
WITH snapshots AS (SELECT DISTINCT epoch FROM commits WHERE counts['snapshot'] = 1),
wanted AS (
  SELECT s.epoch AS snapshot, f.queue_id, f.op_queue_offset, f.position, f.half_queue_offset,
    f.decision, f.producer_group, f.transaction_id, f.cause, f.stored_ms, p.at_ms AS landed_ms,
    f.unit_offset, coalesce(f.resolve_epoch, 9223372036854775807) > s.epoch AS is_early
  FROM snapshots s
  JOIN fates f ON f.fate <> 'none' AND f.op_epoch <= s.epoch
    AND coalesce(f.judged_epoch, 9223372036854775807) > s.epoch
  JOIN plans p ON f.op_epoch = p.epoch
),
of_sets AS (
  SELECT DISTINCT w.snapshot, w.queue_id, w.op_queue_offset, w.unit_offset
  FROM wanted w JOIN waiting r ON w.snapshot = r.epoch AND w.queue_id = r.queue_id
    AND w.op_queue_offset = r.op_queue_offset AND w.position = r.position
  WHERE NOT w.is_early
),
rows AS (
  SELECT *, count(*) OVER (PARTITION BY epoch, queue_id, op_queue_offset, position) AS times
  FROM waiting
)
SELECT coalesce(w.snapshot, r.epoch) AS epoch, coalesce(w.queue_id, r.queue_id) AS queue_id,
  coalesce(w.op_queue_offset, r.op_queue_offset) AS op_queue_offset,
  coalesce(w.position, r.position) AS position,
  CASE
    WHEN w.snapshot IS NULL THEN 'it does not wait'
    WHEN r.times > 1 THEN concat(r.times, ' rows')
    WHEN r.epoch IS NULL AND (w.is_early OR o.snapshot IS NULL) THEN 'it waits, and has no row'
    WHEN r.epoch IS NOT NULL THEN {_WAITING_COLUMNS} || ' is not what the operation says'
  END AS problem
FROM wanted w
FULL JOIN rows r ON w.snapshot = r.epoch AND w.queue_id = r.queue_id
  AND w.op_queue_offset = r.op_queue_offset AND w.position = r.position
LEFT JOIN of_sets o ON w.snapshot = o.snapshot AND w.queue_id = o.queue_id
  AND w.op_queue_offset = o.op_queue_offset AND w.unit_offset = o.unit_offset
"""

# Consumers may read what an epoch has written before it is committed.
_CONSUMERS_WITHIN_QUEUES = """
WITH ends AS (
  SELECT topic, queue_id, max(queue_offset) + 1 AS end_offset FROM all_messages GROUP BY ALL
),
counts AS (SELECT topic, max(queue_count) AS queue_count FROM all_catalog GROUP BY topic)
SELECT NULL::BIGINT AS epoch, c.consumer_group, c.topic, c.queue_id, c.queue_offset, c.generation,
  CASE
    WHEN n.queue_count IS NULL THEN 'there is no such topic'
    WHEN c.queue_id NOT BETWEEN 0 AND n.queue_count - 1 THEN 'there is no such queue'
    WHEN c.queue_offset NOT BETWEEN 0 AND coalesce(e.end_offset, 0)
      THEN concat('the queue ends at ', coalesce(e.end_offset, 0))
  END AS problem
FROM all_consumer_offsets c
LEFT JOIN counts n ON c.topic = n.topic
LEFT JOIN ends e ON c.topic = e.topic AND c.queue_id = e.queue_id
"""

INVARIANTS = (
    Invariant(
        "halves_are_pending_or_ended",
        "Halves = pending + ended: each snapshot holds exactly the halves that had landed and not "
        "ended.",
        _HALVES_ARE_PENDING_OR_ENDED,
    ),
    Invariant(
        "pending_is_state",
        "What a snapshot says of a half is what the other tables say.",
        _PENDING_IS_STATE,
    ),
    Invariant(
        "waiting_is_state",
        "A snapshot holds the operations that wait for their half or set, and no others.",
        _WAITING_IS_STATE,
    ),
    Invariant(
        "consumers_within_queues",
        "No consumer group is beyond the end of a queue.",
        _CONSUMERS_WITHIN_QUEUES,
    ),
)
