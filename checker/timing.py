"""What time does to a half: who is asked, who is given up.

All rules here read C(q), how far the operations of the half's queue are known, and never T: a job
that lags neither asks about nor discards what was ended long ago in Kafka. Where C(q) is not
known yet nothing happens.

Source: TransactionalMessageServiceImpl.check (needDiscard, needSkip, isNeedCheck); PROTOCOL.md
"What happens to a half at an epoch", lines 3 to 7.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from checker.frames import DUE, HALVES, Change, Decision, Parameters
from checker.sql import run
from checker.touched import is_named, join, may_be_due, split

_RULES = """
WITH asked AS (
  SELECT h.queue_id, h.queue_offset, h.unit_offset, h.arm, h.producer_group, h.transaction_id,
    h.real_topic, h.stored_at, h.check_times, h.checked_at,
    q.known_at - h.stored_at > $half_retention_ms AS is_expired,
    CASE WHEN h.checked_at IS NULL
      THEN q.known_at - h.stored_at > coalesce(h.immunity_ms, $transaction_timeout_ms)
      ELSE q.known_at - h.checked_at >= $check_interval_ms END AS is_time
  FROM halves h
  JOIN queues q ON h.queue_id = q.queue_id
  WHERE h.queue_offset = h.unit_offset AND h.discard_cause IS NULL AND q.known_at IS NOT NULL
)
SELECT a.*,
  CASE WHEN is_expired THEN 'expired'
       WHEN check_times >= $check_max THEN 'check_max'
       ELSE 'due' END AS rule
FROM asked a
ANTI JOIN wins w ON a.queue_id = w.queue_id AND a.unit_offset = w.unit_offset
WHERE is_expired OR is_time
"""

# The rate is shared by producer groups: everyone's first, then everyone's second, and so on.
_DUE = """
WITH ranked AS (
  SELECT *, row_number() OVER (PARTITION BY producer_group
                               ORDER BY stored_at, queue_id, queue_offset) AS rank_in_group
  FROM rules WHERE rule = 'due'
),
taken AS (
  SELECT * FROM ranked ORDER BY rank_in_group, stored_at, queue_id, queue_offset
  LIMIT $check_rate_max
)
SELECT t.queue_id, t.queue_offset, t.arm, t.check_times + 1 AS check_times, t.producer_group,
  t.transaction_id, t.real_topic,
  coalesce(s.half_offsets, [t.queue_offset]) AS half_offsets
FROM taken t
LEFT JOIN (
  SELECT queue_id, unit_offset, list(queue_offset ORDER BY queue_offset) AS half_offsets
  FROM halves WHERE tran_size > 1 GROUP BY queue_id, unit_offset
) s ON t.queue_id = s.queue_id AND t.unit_offset = s.unit_offset
ORDER BY t.rank_in_group, t.stored_at, t.queue_id, t.queue_offset
"""

_RULE_ROWS = pa.schema(
    [*(HALVES.field(name) for name in ("queue_id", "queue_offset", "unit_offset", "arm",
                                       "producer_group", "transaction_id", "real_topic",
                                       "stored_at", "check_times", "checked_at")),
     ("is_expired", pa.bool_()), ("is_time", pa.bool_()), ("rule", pa.string())]
)  # fmt: skip


def apply_time(
    halves: pa.Table, wins: pa.Table, queues: pa.Table, parameters: Parameters
) -> pa.Table:
    """Return each unit that time acts upon, with its rule: `expired`, `check_max` or `due`.

    Input: HALVES (new ones included), the units that an operation ends now, QUEUES.
    Output: the unit's first half and `rule`. Equality: immunity is over when C - s exceeds it; a
    further check is due when C - c has reached the interval.
    """
    halves = halves.filter(pa.array(may_be_due(halves, queues, parameters)))
    if halves.num_rows == 0:
        return _RULE_ROWS.empty_table()
    return run(
        _RULES,
        {
            "half_retention_ms": parameters.half_retention_ms,
            "transaction_timeout_ms": parameters.transaction_timeout_ms,
            "check_interval_ms": parameters.check_interval_ms,
            "check_max": parameters.check_max,
        },
        halves=halves,
        wins=wins,
        queues=queues,
    )


def is_something_due(halves: pa.Table, queues: pa.Table, parameters: Parameters) -> bool:
    """Return whether time acts upon any half. Input: HALVES, QUEUES."""
    return bool(apply_time(halves, _NO_WINS, queues, parameters).num_rows)


_NO_WINS = pa.schema([("queue_id", pa.int32()), ("unit_offset", pa.int64())]).empty_table()


def due_checks(rules: pa.Table, halves: pa.Table, check_rate_max: int) -> pa.Table:
    """Return the questions to ask now, oldest first, the rate shared by producer groups.

    Output: DUE. Due checks beyond the rate are not in it and stay due.
    """
    if rules.num_rows == 0:
        return DUE.empty_table()
    return run(_DUE, {"check_rate_max": check_rate_max}, rules=rules, halves=halves)


def record_attempts(decision: Decision, attempts: pa.Table, sent_at: int) -> Decision:
    """Count attempts to ask: c is T of the attempt; n grows only when Kafka acknowledged it.

    Input: attempts: queue_id, queue_offset, acknowledged. What could not be handed to Kafka is no
    attempt and not in it.
    Output: the decision with them in its state and its changes.
    """
    if attempts.num_rows == 0:
        return decision
    state, changes = decision.state, dict(decision.changes)
    asked, left = split(state.halves, is_named(state.halves, attempts))
    counted = _counted(asked, attempts, sent_at)
    put, gone = changes["halves"].put, changes["halves"].left
    others = put.filter(pa.array(~is_named(put, attempts)))
    changes["halves"] = Change(pa.concat_tables([others, counted]), gone)
    return replace(decision, state=replace(state, halves=join(left, counted)), changes=changes)


def _counted(halves: pa.Table, attempts: pa.Table, sent_at: int) -> pa.Table:
    """Return the halves that were asked about, with the attempt counted. Output: HALVES."""
    return run(
        """
        SELECT h.* REPLACE (
          (h.check_times + CASE WHEN a.acknowledged THEN 1 ELSE 0 END)::INTEGER AS check_times,
          $sent_at::BIGINT AS checked_at)
        FROM halves h
        JOIN attempts a ON h.queue_id = a.queue_id AND h.queue_offset = a.queue_offset
        """,
        {"sent_at": sent_at},
        halves=halves,
        attempts=attempts,
    ).cast(halves.schema)
