"""Delayed messages, and all others that were not delivered straight from a commit."""

from __future__ import annotations

from storage.verify.invariant import MESSAGE, Invariant, same
from txlake.protocol import UNDELIVERABLE_TOPIC

# When messages with a time are due. DELIVER_AT goes before the span, and the span before the level;
# up to rule version 4 a level above 0 went before DELIVER_AT. A time at or before `epoch_at` is no
# delay: such a schedule record is due at once (`is_later` is false).
FRAMES = """
CREATE TABLE due AS
WITH waiting AS (
  SELECT 'schedule' AS source, s.queue_id, s.queue_offset, s.epoch, s.stored_ms AS counted_ms,
    s.delay_level, s.delay_ms, s.deliver_ms, s.real_topic, s.real_queue_id, s.producer_group
  FROM schedule_once s WHERE s.error IS NULL
  UNION ALL
  SELECT 'half', h.queue_id, h.queue_offset, h.end_epoch, p.at_ms, h.delay_level, h.delay_ms,
    h.deliver_ms, h.real_topic, h.real_queue_id, h.producer_group
  FROM halves h JOIN plans p ON h.end_epoch = p.epoch
  WHERE h.outcome = 'COMMITTED'
    AND (h.delay_level > 0 OR h.delay_ms IS NOT NULL OR h.deliver_ms IS NOT NULL)
),
ruled AS (
  SELECT w.*, p.at_ms, p.due_at_max, p.deliver_at_max_ms, p.delay_levels_ms,
    CASE
      WHEN w.delay_level > 0 AND NOT p.deliver_at_goes_first THEN 'level'
      WHEN w.deliver_ms IS NOT NULL THEN 'time'
      WHEN w.delay_ms IS NOT NULL THEN 'span'
      WHEN w.delay_level > 0 THEN 'level'
    END AS counts
  FROM waiting w JOIN plans p ON w.epoch = p.epoch
),
timed AS (
  SELECT *, CASE
      WHEN counts = 'level'
        THEN least(due_at_max,
          counted_ms + delay_levels_ms[least(delay_level, len(delay_levels_ms))])
      WHEN counts = 'span' THEN least(due_at_max, counted_ms + least(delay_ms, deliver_at_max_ms))
      WHEN counts = 'time' AND least(deliver_ms, counted_ms + deliver_at_max_ms) > at_ms
        THEN least(due_at_max, deliver_ms, counted_ms + deliver_at_max_ms)
      WHEN source = 'schedule' THEN least(counted_ms, at_ms)
    END AS due_ms
  FROM ruled
)
SELECT source, queue_id, queue_offset, epoch, due_ms, real_topic, real_queue_id, producer_group,
  due_ms > at_ms AS is_later
FROM timed
WHERE source = 'schedule' OR due_ms > at_ms
"""

INVARIANTS = (
    Invariant(
        "delayed_arrive_on_time",
        "A delayed message leaves once, in the first epoch whose epoch_at has reached its time, or "
        "is cancelled before and never delivered.",
        f"""
WITH instants AS (
  SELECT at_ms, min(epoch) AS epoch FROM
    (SELECT epoch, max(at_ms) OVER (ORDER BY epoch) AS at_ms FROM plans)
  GROUP BY at_ms
),
timed AS (
  SELECT r.*, CASE WHEN i.epoch IS NOT NULL THEN greatest(r.epoch, i.epoch) END AS due_epoch
  FROM due r ASOF LEFT JOIN instants i ON r.due_ms <= i.at_ms
),
gone AS (
  SELECT source, queue_id, queue_offset, count(*) AS n, min(epoch) AS epoch,
    arg_min(action, epoch) AS action
  FROM deliveries WHERE admin_offset IS NULL OR action = 'CANCELLED' GROUP BY ALL
)
SELECT t.epoch, t.source, t.queue_id, t.queue_offset,
  CASE
    WHEN g.n > 1 THEN concat(g.n, ' rows in deliveries')
    WHEN g.n IS NULL AND t.due_epoch IS NOT NULL
      THEN concat('due in epoch ', t.due_epoch, ', and not delivered')
    WHEN g.action = 'CANCELLED' AND (g.epoch <= t.epoch OR g.epoch > t.due_epoch)
      THEN concat('cancelled in epoch ', g.epoch, ', when it did not wait')
    WHEN g.action <> 'CANCELLED' AND coalesce(g.epoch < t.due_epoch, t.due_epoch IS NULL)
      THEN concat('delivered in epoch ', g.epoch, ', before its time')
    WHEN g.action <> 'CANCELLED' AND g.epoch > t.due_epoch
      THEN concat('due in epoch ', t.due_epoch, ', delivered in epoch ', g.epoch)
  END AS problem
FROM timed t LEFT JOIN gone g ON {same(MESSAGE, "t", "g")}
""",
    ),
    # Several commands of an epoch can resume the same message; the first one counts.
    Invariant(
        "deliveries_have_their_reason",
        "Every row of deliveries follows from a delay, a commit or a command, and its message is "
        "where it says.",
        f"""
WITH refused AS (
  SELECT source, queue_id, queue_offset, min(epoch) AS epoch, min(real_queue_offset) AS place
  FROM deliveries WHERE action = 'UNDELIVERABLE' GROUP BY ALL
),
waits AS (
  SELECT source, queue_id, queue_offset, min(epoch) AS epoch FROM due GROUP BY ALL
),
times AS (
  SELECT source, queue_id, queue_offset, action, count(*) AS n FROM deliveries
  GROUP BY ALL HAVING count(*) > 1
)
SELECT d.epoch, d.source, d.queue_id, d.queue_offset, d.action,
  CASE
    WHEN d.action NOT IN ('DELIVERED', 'UNDELIVERABLE', 'CANCELLED') THEN 'no such action'
    WHEN d.action = 'CANCELLED' AND w.epoch IS NULL THEN 'it was not delayed'
    WHEN d.action = 'CANCELLED'
      AND (a.epoch, a.result, a.kind, a.named_queue, a.named_offset) IS DISTINCT FROM
        (d.epoch, 'cancelled', d.source, d.queue_id, d.queue_offset)
      THEN 'no command of this epoch cancelled it'
    WHEN d.action = 'UNDELIVERABLE' AND w.epoch IS NULL
      AND (d.source, h.outcome, h.end_epoch) IS DISTINCT FROM ('half', 'COMMITTED', d.epoch)
      THEN 'neither delayed nor committed in this epoch'
    WHEN d.action = 'DELIVERED' AND d.admin_offset IS NULL AND w.epoch IS NULL
      THEN 'it was not delayed'
    WHEN d.action = 'DELIVERED' AND d.admin_offset IS NOT NULL
      AND NOT coalesce(u.epoch < d.epoch, false) THEN 'it was not undeliverable before'
    WHEN d.action = 'DELIVERED' AND d.admin_offset IS NOT NULL
      AND (a.epoch, a.result, a.kind, a.named_offset) IS DISTINCT FROM
        (d.epoch, 'resumed', 'undeliverable', u.place)
      THEN 'no command of this epoch resumed it'
    WHEN t.n > 1 AND (w.epoch IS NULL OR d.admin_offset IS NOT NULL)
      THEN concat(t.n, ' rows of this action')
    WHEN d.action <> 'CANCELLED' AND m.n IS NULL
      AND NOT (d.action = 'DELIVERED' AND is_gone(d.real_topic, d.epoch))
      THEN concat('not at offset ', d.real_queue_offset, ' of queue ', d.real_queue_id)
  END AS problem
FROM deliveries d
LEFT JOIN refused u ON {same(MESSAGE, "d", "u")}
LEFT JOIN waits w ON {same(MESSAGE, "d", "w")}
LEFT JOIN times t ON {same(MESSAGE, "d", "t")} AND d.action = t.action
LEFT JOIN halves h ON {same(MESSAGE, "d", "h")}
LEFT JOIN (SELECT DISTINCT ON (admin_offset) * FROM commanded) a
  ON d.admin_offset = a.admin_offset
LEFT JOIN (SELECT source, half_queue_id, half_queue_offset, topic, queue_id, queue_offset, epoch,
             count(*) AS n FROM messages GROUP BY ALL) m
  ON d.source = m.source AND d.queue_id = m.half_queue_id AND d.queue_offset = m.half_queue_offset
  AND m.topic = CASE d.action WHEN 'DELIVERED' THEN d.real_topic ELSE '{UNDELIVERABLE_TOPIC}' END
  AND d.real_queue_id = m.queue_id AND d.real_queue_offset = m.queue_offset AND d.epoch = m.epoch
""",
    ),
)
