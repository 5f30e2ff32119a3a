"""The rules of time: which halves are checked, which are discarded, and when."""

from __future__ import annotations

from storage.verify.invariant import Invariant
from txlake.protocol import CHECK_MAX_TOPIC

# Attempts in their order, by unit and arm. `since_ms`: the instant from which the age counts, the
# unit's `age_from_at`; after a re-arm its `epoch_at`.
# Attempts with the same `acknowledged_before` follow one that was acknowledged, or the arm's start.
# Since rule version 3 those that were not acknowledged make the interval longer.
FRAMES = """
CREATE TABLE attempts AS
WITH counted AS (
  SELECT c.*, u.unit_offset, u.end_epoch, u.epoch AS landed_epoch, k.known_ms,
    arm_at(u.rearm_epochs, c.epoch) AS arm_then,
    coalesce(u.rearm_ats[arm_at(u.rearm_epochs, c.epoch)], u.age_from_ms) AS since_ms,
    coalesce(u.immunity_ms, p.transaction_timeout_ms) AS unit_immunity_ms,
    h.producer_group AS unit_group,
    p.check_interval_ms, p.check_max, p.half_retention_ms, p.check_rate_max, p.rule_version,
    lag(c.sent_ms) OVER earlier AS before_ms,
    lag(c.epoch) OVER earlier AS before_epoch,
    coalesce(count(*) FILTER (c.acknowledged) OVER (earlier ROWS BETWEEN UNBOUNDED PRECEDING
      AND 1 PRECEDING), 0) AS acknowledged_before
  FROM checks c
  JOIN plans p ON c.epoch = p.epoch
  LEFT JOIN landed h ON c.queue_id = h.queue_id AND c.queue_offset = h.queue_offset
    AND h.error IS NULL
  LEFT JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
  LEFT JOIN known k ON k.what = 'op' AND c.queue_id = k.queue_id AND c.epoch = k.epoch
  WINDOW earlier AS (PARTITION BY c.queue_id, c.queue_offset, arm_at(u.rearm_epochs, c.epoch)
                     ORDER BY c.epoch, c.check_times)
),
in_a_row AS (
  SELECT *, row_number() OVER (PARTITION BY queue_id, queue_offset, arm_then, acknowledged_before
                               ORDER BY epoch, check_times) - 1 AS unacknowledged_before
  FROM counted
)
SELECT *, CASE WHEN acknowledged THEN 0 ELSE unacknowledged_before + 1 END AS unacknowledged,
  CASE WHEN rule_version < 3 THEN check_interval_ms
    ELSE least(check_interval_ms * pow(2, greatest(unacknowledged_before - 1, 0)),
      greatest(check_interval_ms, 3600000))::BIGINT
  END AS wanted_ms
FROM in_a_row
"""

INVARIANTS = (
    Invariant(
        "checks_in_sequence",
        "The check_times of a half's checks are 1, 2, 3 ... in each arm, at most check_max; one "
        "that was not acknowledged does not count.",
        """
SELECT epoch, queue_id, queue_offset, arm, check_times,
  CASE
    WHEN before_epoch = epoch THEN 'asked twice in this epoch'
    WHEN check_times IS DISTINCT FROM acknowledged_before + 1
      THEN concat(acknowledged_before, ' were acknowledged before')
    WHEN check_times > check_max THEN concat('check_max was ', check_max)
    WHEN check_id IS DISTINCT FROM concat_ws('-', queue_id, queue_offset, arm, check_times)
      THEN concat('its check_id is ', check_id)
  END AS problem
FROM attempts
""",
    ),
    Invariant(
        "checks_spaced",
        "No check comes during immunity, or sooner after the last attempt than check_interval_ms, "
        "doubled by attempts that Kafka did not acknowledge; "
        "the queue's known_at tells both.",
        """
SELECT epoch, queue_id, queue_offset, arm, check_times,
  CASE
    WHEN known_ms IS NULL THEN 'known_at was not known'
    WHEN before_epoch IS NULL AND NOT coalesce(known_ms - since_ms > unit_immunity_ms, false)
      THEN concat('known_at - age_from_at was ', known_ms - since_ms, ' ms, the immunity ',
        unit_immunity_ms)
    WHEN before_epoch < epoch AND NOT coalesce(known_ms - before_ms >= wanted_ms, false)
      THEN concat('known_at - checked_at was ', known_ms - before_ms, ' ms, the interval ',
        wanted_ms)
    WHEN known_ms - since_ms > half_retention_ms THEN 'the half had expired'
  END AS problem
FROM attempts
""",
    ),
    Invariant(
        "checks_before_end",
        "Only the first half of a unit that waits for its end is asked about.",
        """
SELECT a.epoch, a.queue_id, a.queue_offset, a.arm, a.check_times,
  CASE
    WHEN a.unit_offset IS NULL THEN 'no half that can be read stands there'
    WHEN a.queue_offset <> a.unit_offset
      THEN concat('the first half of its set is ', a.unit_offset)
    WHEN a.producer_group IS DISTINCT FROM a.unit_group
      THEN concat('the half is of producer group ', a.unit_group)
    WHEN a.epoch < a.landed_epoch THEN concat('the half landed in epoch ', a.landed_epoch)
    WHEN a.epoch >= a.end_epoch THEN concat('the half ended in epoch ', a.end_epoch)
    WHEN a.epoch >= d.epoch THEN concat('the half was discarded in epoch ', d.epoch)
  END AS problem
FROM attempts a
LEFT JOIN (SELECT queue_id, unit_offset, arm, min(epoch) AS epoch FROM unit_discards
           GROUP BY ALL) d
  ON a.queue_id = d.queue_id AND a.unit_offset = d.unit_offset AND a.arm_then = d.arm
""",
    ),
    Invariant(
        "checks_within_rate",
        "No epoch asks more than check_rate_max.",
        """
SELECT epoch, count(*) AS checks,
  CASE WHEN count(*) > any_value(check_rate_max)
    THEN concat('check_rate_max was ', any_value(check_rate_max)) END AS problem
FROM attempts GROUP BY epoch
""",
    ),
    # A half that lands after its set was given up is given up with it, in the epoch that lands it.
    Invariant(
        "discards_have_their_cause",
        "A half is discarded as expired when known_at - age_from_at exceeds half_retention_ms; as "
        "check_max after check_max acknowledged checks of that arm, the last with its whole "
        "interval.",
        """
WITH discarded AS (
  SELECT o.epoch, o.queue_id, o.queue_offset, o.cause, h.epoch AS landed_epoch, u.unit_offset,
    u.age_from_ms, u.rearm_ats, u.immunity_ms, k.known_ms, p.check_max, p.check_interval_ms,
    p.half_retention_ms, p.transaction_timeout_ms, arm_at(u.rearm_epochs, o.epoch) AS arm
  FROM outcomes o
  JOIN plans p ON o.epoch = p.epoch
  JOIN halves h ON o.queue_id = h.queue_id AND o.queue_offset = h.queue_offset
  JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
  LEFT JOIN known k ON k.what = 'op' AND o.queue_id = k.queue_id AND o.epoch = k.epoch
  WHERE o.outcome = 'DISCARDED'
  QUALIFY o.epoch = min(o.epoch) OVER (PARTITION BY o.queue_id, o.queue_offset, arm)
),
checked AS (
  SELECT g.queue_id, g.unit_offset, g.epoch, count(*) FILTER (a.acknowledged) AS times,
    max(a.sent_ms) AS asked_ms
  FROM (SELECT DISTINCT queue_id, unit_offset, epoch, arm FROM discarded) g
  JOIN attempts a ON g.queue_id = a.queue_id AND g.unit_offset = a.unit_offset
    AND g.arm = a.arm_then AND a.epoch < g.epoch
  GROUP BY g.queue_id, g.unit_offset, g.epoch
),
judged AS (
  SELECT g.*, g.known_ms - coalesce(g.rearm_ats[g.arm], g.age_from_ms) AS age_ms,
    coalesce(a.times, 0) AS times, a.asked_ms, g.known_ms - a.asked_ms AS pause_ms,
    d.epoch AS unit_epoch, d.cause AS unit_cause
  FROM discarded g
  LEFT JOIN checked a ON g.queue_id = a.queue_id AND g.unit_offset = a.unit_offset
    AND g.epoch = a.epoch
  LEFT JOIN unit_discards d ON g.queue_id = d.queue_id AND g.unit_offset = d.unit_offset
    AND g.arm = d.arm
)
SELECT epoch, queue_id, queue_offset, cause,
  CASE
    WHEN unit_epoch < epoch AND landed_epoch = epoch AND unit_cause = cause THEN NULL
    WHEN unit_epoch IS DISTINCT FROM epoch OR unit_cause IS DISTINCT FROM cause
      THEN concat('its set was discarded in epoch ', unit_epoch, ' as ', unit_cause)
    WHEN known_ms IS NULL THEN 'known_at was not known'
    WHEN cause = 'expired' AND NOT coalesce(age_ms > half_retention_ms, false)
      THEN concat('known_at - age_from_at was ', age_ms, ' ms, half_retention_ms ',
        half_retention_ms)
    WHEN cause = 'check_max' AND age_ms > half_retention_ms THEN 'it had expired'
    WHEN cause = 'check_max' AND times < check_max
      THEN concat('asked ', times, ' times, check_max was ', check_max)
    WHEN cause = 'check_max' AND asked_ms IS NULL
      AND NOT coalesce(age_ms > coalesce(immunity_ms, transaction_timeout_ms), false)
      THEN concat('its immunity was not over, known_at - age_from_at was ', age_ms, ' ms')
    WHEN cause = 'check_max' AND pause_ms < check_interval_ms
      THEN concat('the last check had ', pause_ms, ' ms, not ', check_interval_ms)
    WHEN cause NOT IN ('expired', 'check_max') THEN 'no cause of a discard'
  END AS problem
FROM judged
""",
    ),
    # When each unit, in each arm, had to be given up: the first epoch whose `known_at` has gone so
    # far. A half whose age begins, or that was last asked about, before `reach` has waited long
    # enough by that epoch.
    Invariant(
        "nobody_waits_too_long",
        "No half waits in an epoch in which it had to be given up.",
        """
WITH arms AS (
  SELECT queue_id, unit_offset, 0 AS arm, age_from_ms AS since_ms, epoch FROM units
  UNION ALL
  SELECT queue_id, unit_offset, arm, at_ms, epoch FROM rearms
),
spans AS (
  SELECT a.*, least(coalesce(u.end_epoch, 9223372036854775807),
      coalesce(d.epoch, 9223372036854775807),
      coalesce(r.epoch, 9223372036854775807)) AS until_epoch
  FROM arms a
  JOIN units u ON a.queue_id = u.queue_id AND a.unit_offset = u.unit_offset
  LEFT JOIN unit_discards d ON a.queue_id = d.queue_id AND a.unit_offset = d.unit_offset
    AND a.arm = d.arm
  LEFT JOIN rearms r ON a.queue_id = r.queue_id AND a.unit_offset = r.unit_offset
    AND r.arm = a.arm + 1
),
margins AS (
  SELECT k.queue_id, k.epoch, k.known_ms, k.known_ms - p.half_retention_ms AS expired_ms,
    p.check_interval_ms, p.check_max, p.rule_version
  FROM known k JOIN plans p ON k.epoch = p.epoch WHERE k.what = 'op'
),
checked AS (
  SELECT s.queue_id, s.unit_offset, s.arm, s.until_epoch, max(a.epoch) AS epoch,
    max(a.sent_ms) AS sent_ms, count(*) FILTER (a.acknowledged) AS times,
    greatest(0, least(arg_max(a.unacknowledged, a.epoch) - 1, 32)) AS doublings
  FROM spans s JOIN attempts a ON s.queue_id = a.queue_id AND s.unit_offset = a.unit_offset
    AND s.arm = a.arm_then
  GROUP BY ALL
),
pauses AS (
  SELECT queue_id, epoch, check_max, doublings, known_ms - CASE WHEN rule_version < 3
      THEN check_interval_ms
    ELSE least(check_interval_ms * pow(2, doublings),
      greatest(check_interval_ms, 3600000))::BIGINT
    END AS asked_ms
  FROM (SELECT *, unnest((SELECT list(DISTINCT doublings) FROM checked)) AS doublings FROM margins)
),
expired AS (
  SELECT queue_id, reach, min(epoch) AS epoch FROM
    (SELECT *, max(expired_ms) OVER (PARTITION BY queue_id ORDER BY epoch) AS reach FROM margins)
  GROUP BY queue_id, reach
),
paused AS (
  SELECT queue_id, doublings, reach, min(epoch) AS epoch FROM
    (SELECT *, max(asked_ms) OVER (PARTITION BY queue_id, doublings ORDER BY epoch) AS reach
      FROM pauses)
  GROUP BY queue_id, doublings, reach
),
too_old AS (
  SELECT s.*, greatest(s.epoch, e.epoch) AS due_epoch
  FROM spans s ASOF JOIN expired e ON s.queue_id = e.queue_id AND s.since_ms < e.reach
),
all_checked AS (
  SELECT s.*, greatest(s.epoch + 1, e.epoch) AS due_epoch
  FROM checked s ASOF JOIN paused e ON s.queue_id = e.queue_id
    AND s.doublings = e.doublings AND s.sent_ms <= e.reach
)
SELECT s.epoch, s.queue_id, s.unit_offset AS queue_offset, s.arm,
  CASE
    WHEN o.due_epoch < s.until_epoch AND m.expired_ms > s.since_ms
      THEN concat('had to be given up in epoch ', o.due_epoch, ': expired')
    WHEN q.due_epoch < s.until_epoch AND n.asked_ms >= q.sent_ms AND q.times >= n.check_max
      THEN concat('had to be given up in epoch ', q.due_epoch, ': check_max')
  END AS problem
FROM spans s
LEFT JOIN too_old o ON s.queue_id = o.queue_id AND s.unit_offset = o.unit_offset
  AND s.arm = o.arm
LEFT JOIN margins m ON o.queue_id = m.queue_id AND o.due_epoch = m.epoch
LEFT JOIN all_checked q ON s.queue_id = q.queue_id AND s.unit_offset = q.unit_offset
  AND s.arm = q.arm
LEFT JOIN pauses n ON q.queue_id = n.queue_id AND q.due_epoch = n.epoch
  AND q.doublings = n.doublings
""",
    ),
    Invariant(
        "discards_are_copied",
        "TRANS_CHECK_MAX_TIME_TOPIC has one copy of each discarded half, made by its first "
        "discard, with its cause.",
        f"""
WITH first AS (
  SELECT queue_id, queue_offset, min(epoch) AS epoch, arg_min(cause, epoch) AS cause
  FROM outcomes WHERE outcome = 'DISCARDED' GROUP BY queue_id, queue_offset
),
copies AS (
  SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset, min(epoch) AS epoch,
    arg_min(reason, epoch) AS cause, count(*) AS times
  FROM messages WHERE topic = '{CHECK_MAX_TOPIC}' AND source = 'half' GROUP BY ALL
)
SELECT coalesce(f.epoch, c.epoch) AS epoch, coalesce(f.queue_id, c.queue_id) AS queue_id,
  coalesce(f.queue_offset, c.queue_offset) AS queue_offset,
  CASE
    WHEN c.times IS NULL AND is_gone('{CHECK_MAX_TOPIC}', f.epoch) THEN NULL
    WHEN c.times IS NULL THEN 'no copy'
    WHEN f.epoch IS NULL THEN 'a copy of a half that was not discarded'
    WHEN c.times > 1 THEN concat(c.times, ' copies')
    WHEN c.epoch <> f.epoch THEN concat('copied in epoch ', c.epoch)
    WHEN c.cause IS DISTINCT FROM f.cause THEN concat('the copy says ', c.cause)
  END AS problem
FROM first f FULL JOIN copies c ON f.queue_id = c.queue_id AND f.queue_offset = c.queue_offset
""",
    ),
)
