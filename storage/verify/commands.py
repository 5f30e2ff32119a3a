"""What operators asked for, what could not be delivered, and the topics there are."""

from __future__ import annotations

from storage.verify.invariant import Invariant
from txlake.protocol import UNDELIVERABLE_TOPIC

_RESULTS = [
    f"{command} {result}"
    for command, results in {
        "RESUME": "rearmed not_discarded resumed still_undeliverable not_undeliverable bad_target",
        "CANCEL": "cancelled not_delayed bad_target",
        "CREATE_TOPIC": "created grown unchanged bad_target",
        "MAINTAIN": "accepted",
        "PING": "accepted",
    }.items()
    for result in results.split()
]
_COMMANDS_HAVE_EFFECT = f"""
WITH done AS (SELECT admin_offset, epoch, min(action) AS action FROM deliveries
              WHERE admin_offset IS NOT NULL GROUP BY ALL),
resumed AS (
  SELECT a.epoch, a.target FROM admin a
  JOIN done d ON a.queue_offset = d.admin_offset AND a.epoch = d.epoch
  WHERE d.action = 'DELIVERED'
),
made AS (
  SELECT epoch, topic, min(epoch) OVER (PARTITION BY topic) AS first_epoch,
    max(queue_count) AS queue_count
  FROM catalog GROUP BY epoch, topic
)
SELECT a.epoch, a.queue_offset AS admin_offset, a.command, a.target, a.result,
  CASE
    WHEN a.result IS NULL THEN 'no result'
    WHEN a.error IS NOT NULL AND a.result <> a.error THEN 'it cannot be read'
    WHEN a.error IS NULL AND NOT list_contains({_RESULTS}, concat(a.command, ' ', a.result))
      THEN 'no such result'
    WHEN a.result = 'cancelled' AND d.action IS DISTINCT FROM 'CANCELLED'
      THEN 'nothing is cancelled'
    WHEN a.result = 'resumed' AND NOT EXISTS
        (FROM resumed r WHERE r.epoch = a.epoch AND r.target = a.target)
      THEN 'nothing is delivered'
    WHEN a.result NOT IN ('cancelled', 'resumed') AND d.action IS NOT NULL
      THEN concat('yet a message is ', d.action)
    WHEN a.result IN ('created', 'grown')
      AND (m.epoch = m.first_epoch) IS DISTINCT FROM (a.result = 'created')
      THEN 'the catalog of this epoch says otherwise'
    WHEN a.result IN ('created', 'grown')
      AND m.queue_count < try_cast(split_part(a.target, ':', 3) AS INTEGER)
      THEN concat('the topic has ', m.queue_count, ' queues')
    WHEN a.result = 'rearmed' AND u.queue_id IS NULL THEN 'there is no such half'
    WHEN a.result = 'rearmed' AND u.end_epoch < a.epoch THEN 'the half had ended'
    WHEN a.result = 'rearmed' AND NOT EXISTS (
      FROM unit_discards g WHERE g.queue_id = u.queue_id AND g.unit_offset = u.unit_offset
        AND g.arm = r.arm - 1 AND g.epoch < a.epoch) THEN 'the half was not discarded'
  END AS problem
FROM admin a
LEFT JOIN done d ON a.queue_offset = d.admin_offset AND a.epoch = d.epoch
LEFT JOIN made m ON m.topic = split_part(a.target, ':', 2) AND m.epoch = a.epoch
LEFT JOIN rearms r ON a.queue_offset = r.admin_offset
LEFT JOIN units u ON r.queue_id = u.queue_id AND r.unit_offset = u.unit_offset
"""

_UNDELIVERABLE_HAVE_REASON = f"""
WITH users AS (
  SELECT epoch, count(*) AS topics FROM
    (SELECT topic, min(epoch) AS epoch FROM catalog WHERE NOT is_own(topic) GROUP BY topic)
  GROUP BY epoch
),
sums AS (SELECT epoch, sum(topics) OVER (ORDER BY epoch) AS topics FROM users),
judged AS (
  SELECT m.*, q.queue_count, p.auto_create_topics, p.topics_max,
    coalesce(m.asked_queue_id, 0)
      >= coalesce(q.queue_count, CASE WHEN p.auto_create_topics THEN p.default_queue_count END)
      AS is_outside
  FROM (FROM messages WHERE topic = '{UNDELIVERABLE_TOPIC}') m
  JOIN plans p ON m.epoch = p.epoch
  ASOF LEFT JOIN queue_counts q ON m.real_topic = q.topic AND m.epoch >= q.epoch
)
SELECT j.epoch, j.queue_offset, j.real_topic, j.asked_queue_id, j.reason,
  CASE
    WHEN coalesce(j.is_outside, false) <> (j.reason = 'queue_out_of_range')
      OR j.reason NOT IN ('queue_out_of_range', 'topic_not_allowed')
      THEN concat('the topic has ', coalesce(j.queue_count::VARCHAR, 'no'), ' queues')
    WHEN j.reason IS NULL THEN 'no reason'
    WHEN j.reason = 'topic_not_allowed' AND j.queue_count IS NOT NULL THEN 'there is such a topic'
    WHEN j.reason = 'topic_not_allowed' AND j.auto_create_topics
      AND coalesce(s.topics, 0) < j.topics_max THEN 'the topic had to be made'
  END AS problem
FROM judged j ASOF LEFT JOIN sums s ON j.epoch >= s.epoch
"""

# A topic's queues: what commands of that epoch ask for; without one, as on first use.
_CATALOG_GROWS = """
WITH asked AS (
  SELECT epoch, split_part(target, ':', 2) AS topic,
    max(try_cast(split_part(target, ':', 3) AS INTEGER)) AS queue_count
  FROM admin WHERE result IN ('created', 'grown') GROUP BY ALL
)
SELECT c.epoch, c.topic, c.table_id, c.queue_count,
  CASE
    WHEN c.first_id <> c.table_id THEN concat('the topic has table ', c.first_id)
    WHEN c.first_topic <> c.topic THEN concat('the table is of topic ', c.first_topic)
    WHEN c.table_id > c.tables OR c.table_id < 1 THEN concat('there are ', c.tables, ' topics')
    WHEN c.queue_count <= c.before_count THEN concat('it had ', c.before_count, ' queues')
    WHEN a.topic IS NULL AND c.before_count IS NOT NULL THEN 'no command asked for more queues'
    WHEN c.queue_count IS DISTINCT FROM coalesce(a.queue_count,
        CASE WHEN is_own(c.topic) THEN 1 ELSE p.default_queue_count END)
      THEN concat('asked for were ', a.queue_count)
    WHEN t.table_id IS NULL THEN 'there is no such table'
  END AS problem
FROM (
  SELECT *, first(table_id) OVER (PARTITION BY topic ORDER BY epoch, table_id) AS first_id,
    first(topic) OVER (PARTITION BY table_id ORDER BY epoch, topic) AS first_topic,
    lag(queue_count) OVER (PARTITION BY topic, table_id ORDER BY epoch, queue_count)
      AS before_count,
    (SELECT count(DISTINCT table_id) FROM catalog) AS tables
  FROM catalog
) c
JOIN plans p ON c.epoch = p.epoch
LEFT JOIN asked a ON c.epoch = a.epoch AND c.topic = a.topic
LEFT JOIN (SELECT DISTINCT table_id FROM topic_tables) t ON c.table_id = t.table_id
"""

INVARIANTS = (
    Invariant(
        "commands_have_effect",
        "Every command did what its result says, and nothing else.",
        _COMMANDS_HAVE_EFFECT,
    ),
    Invariant(
        "undeliverable_have_reason",
        "A message is undeliverable only when its topic lacked that queue, or could not be made.",
        _UNDELIVERABLE_HAVE_REASON,
    ),
    Invariant(
        "catalog_grows",
        "A topic has one table, ids are 1, 2, 3 ..., and queue counts only grow, by command.",
        _CATALOG_GROWS,
    ),
)
