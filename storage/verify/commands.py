"""Operators' commands, undeliverable messages, and topics."""

from __future__ import annotations

from storage.verify.invariant import MESSAGE, Invariant, same
from txlake.protocol import UNDELIVERABLE_TOPIC

_RESULTS = [
    f"{command} {result}"
    for command, results in {
        "RESUME": "rearmed not_discarded resumed still_undeliverable not_undeliverable bad_target",
        "RESEND": "resent not_pending bad_target",
        "CANCEL": "cancelled not_delayed bad_target",
        "CREATE_TOPIC": "created grown unchanged bad_target",
        "ALTER_TOPIC": "altered no_such_topic bad_target",
        "ACCEPT_LOSS": "noted bad_target",
        "MAINTAIN": "accepted",
        "PING": "accepted",
    }.items()
    for result in results.split()
]

FRAMES = """
-- The number of topics after each epoch: of users, and of each producer group that made some.
CREATE TABLE topic_counts AS
WITH first AS (
  SELECT topic, min(epoch) AS epoch, any_value(producer_group) AS maker FROM catalog GROUP BY topic
)
SELECT maker, epoch, sum(topics) OVER (PARTITION BY maker ORDER BY epoch) AS topics FROM (
  SELECT maker, epoch, count(*) AS topics FROM first WHERE maker IS NOT NULL GROUP BY ALL
  UNION ALL
  SELECT NULL, epoch, count(*) FROM first WHERE NOT is_own(topic) GROUP BY epoch);

-- Where messages went that are out of scope; the rows of their records can be deleted.
CREATE VIEW out_of_scope_places AS
SELECT real_topic AS topic, epoch FROM all_outcomes
WHERE outcome = 'COMMITTED' AND NOT in_scope('half', queue_id, queue_offset)
UNION ALL
SELECT real_topic, epoch FROM all_deliveries WHERE NOT in_scope(source, queue_id, queue_offset)
"""

INVARIANTS = (
    Invariant(
        "commands_have_effect",
        "Every command did what its result says, and nothing else.",
        f"""
WITH done AS (SELECT admin_offset, epoch, min(action) AS action FROM all_deliveries
              WHERE admin_offset IS NOT NULL AND epoch > base() GROUP BY ALL),
resumed AS (
  SELECT a.epoch, a.named_offset FROM commanded a
  JOIN done d ON a.admin_offset = d.admin_offset AND a.epoch = d.epoch
  WHERE d.action = 'DELIVERED'
),
made AS (
  SELECT epoch, topic, min(epoch) OVER (PARTITION BY topic) AS first_epoch,
    max(queue_count) AS queue_count
  FROM catalog GROUP BY epoch, topic
)
SELECT a.epoch, a.admin_offset, a.command, a.target, a.result,
  CASE
    WHEN a.result IS NULL THEN 'no result'
    WHEN a.error IS NOT NULL AND a.result <> a.error THEN 'it cannot be read'
    WHEN a.error IS NULL AND NOT list_contains({_RESULTS}, concat(a.command, ' ', a.result))
      THEN 'no such result'
    WHEN a.error IS NULL AND a.kind IS NULL AND a.result NOT IN ('bad_target', 'accepted')
      THEN 'its target cannot be read'
    WHEN a.result = 'cancelled' AND d.action IS DISTINCT FROM 'CANCELLED'
      THEN 'nothing is cancelled'
    WHEN a.result = 'resumed' AND NOT EXISTS
        (FROM resumed r WHERE r.epoch = a.epoch AND r.named_offset = a.named_offset)
      THEN 'nothing is delivered'
    WHEN a.result NOT IN ('cancelled', 'resumed') AND d.action IS NOT NULL
      THEN concat('yet a message is ', d.action)
    WHEN a.result IN ('created', 'grown')
      AND (m.epoch = m.first_epoch) IS DISTINCT FROM (a.result = 'created')
      THEN 'the catalog of this epoch says otherwise'
    WHEN a.result IN ('created', 'grown')
      AND m.queue_count < a.queue_count
      THEN concat('the topic has ', m.queue_count, ' queues')
    WHEN a.result = 'altered' AND t.epoch IS NULL THEN 'there is no such topic'
    WHEN a.result = 'no_such_topic' AND t.epoch < a.epoch THEN 'there was such a topic'
    WHEN a.result IN ('rearmed', 'resent') AND u.queue_id IS NULL
      AND in_scope('half', a.named_queue, a.named_offset) THEN 'there is no such half'
    WHEN a.result IN ('rearmed', 'resent') AND u.end_epoch < a.epoch THEN 'the half had ended'
    WHEN a.result = 'rearmed' AND u.queue_id IS NOT NULL AND NOT EXISTS (
      FROM unit_discards g WHERE g.queue_id = u.queue_id AND g.unit_offset = u.unit_offset
        AND g.arm = r.arm - 1 AND g.epoch < a.epoch) THEN 'the half was not discarded'
    WHEN a.result = 'resent' AND EXISTS (
      FROM unit_discards g WHERE g.queue_id = u.queue_id AND g.unit_offset = u.unit_offset
        AND g.arm = r.arm - 1 AND g.epoch < a.epoch) THEN 'the half was discarded'
  END AS problem
FROM commanded a
LEFT JOIN done d ON a.admin_offset = d.admin_offset AND a.epoch = d.epoch
LEFT JOIN made m ON m.topic = a.topic AND m.epoch = a.epoch
LEFT JOIN (SELECT topic, min(epoch) AS epoch FROM catalog GROUP BY topic) t
  ON t.topic = a.topic AND t.epoch <= a.epoch
LEFT JOIN rearms r ON a.admin_offset = r.admin_offset
LEFT JOIN units u ON r.queue_id = u.queue_id AND r.unit_offset = u.unit_offset
""",
    ),
    # The state that a command met in the order of commands.
    Invariant(
        "nothing_was_there",
        "A command that found nothing to do had nothing to find.",
        f"""
WITH read AS (
  FROM commanded
  WHERE error IS NULL AND result IN ('not_discarded', 'not_pending', 'not_delayed',
    'not_undeliverable', 'still_undeliverable', 'unchanged', 'bad_target')
),
discarded AS (
  SELECT r.admin_offset FROM read r
  JOIN halves h ON r.kind = 'half' AND r.named_queue = h.queue_id
    AND r.named_offset = h.queue_offset AND coalesce(h.end_epoch, r.epoch) >= r.epoch
  JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
  JOIN outcomes o ON o.queue_id = h.queue_id AND o.queue_offset = h.queue_offset
    AND o.outcome = 'DISCARDED' AND o.epoch < r.epoch
  WHERE r.result = 'not_discarded'
    AND NOT EXISTS (FROM rearms m WHERE m.queue_id = h.queue_id AND m.unit_offset = h.unit_offset
      AND m.epoch > o.epoch AND m.admin_offset < r.admin_offset)
),
armed AS (
  SELECT r.admin_offset, r.epoch, h.queue_id, h.unit_offset, coalesce(max(m.arm), 0) AS arm
  FROM read r
  JOIN halves h ON r.kind = 'half' AND r.named_queue = h.queue_id
    AND r.named_offset = h.queue_offset AND h.epoch < r.epoch
    AND coalesce(h.end_epoch, r.epoch) >= r.epoch
  LEFT JOIN rearms m ON h.queue_id = m.queue_id AND h.unit_offset = m.unit_offset
    AND m.admin_offset < r.admin_offset
  WHERE r.result = 'not_pending' GROUP BY ALL
),
pending_then AS (
  SELECT a.admin_offset FROM armed a
  ANTI JOIN unit_discards g ON a.queue_id = g.queue_id AND a.unit_offset = g.unit_offset
    AND a.arm = g.arm AND g.epoch < a.epoch
),
delayed_then AS (
  SELECT r.admin_offset FROM read r
  JOIN due d ON d.is_later AND r.kind = d.source AND r.named_queue = d.queue_id
    AND r.named_offset = d.queue_offset AND d.epoch < r.epoch
  WHERE r.result = 'not_delayed'
    AND NOT EXISTS (FROM deliveries g WHERE {same(MESSAGE, "g", "d")}
      AND (g.epoch < r.epoch OR g.epoch = r.epoch AND g.admin_offset < r.admin_offset))
),
undeliverable AS (
  SELECT m.queue_offset, m.epoch, m.real_topic, coalesce(m.asked_queue_id, 0) AS asked_queue_id,
    min(g.epoch) AS gone_epoch
  FROM (FROM all_messages WHERE epoch <= (SELECT max(epoch) FROM commits)) m
  LEFT JOIN all_deliveries g ON g.action = 'DELIVERED' AND g.source = m.source
    AND g.queue_id = m.half_queue_id AND g.queue_offset = m.half_queue_offset
  WHERE m.topic = '{UNDELIVERABLE_TOPIC}' GROUP BY ALL
)
SELECT r.epoch, r.admin_offset, r.command, r.target, r.result,
  CASE
    WHEN r.result = 'not_discarded' AND x.admin_offset IS NOT NULL
      THEN 'the half was discarded, and not re-armed'
    WHEN r.result = 'not_pending' AND y.admin_offset IS NOT NULL THEN 'the half was pending'
    WHEN r.result = 'not_delayed' AND w.admin_offset IS NOT NULL THEN 'the message waited'
    WHEN r.result = 'not_undeliverable' AND coalesce(u.gone_epoch, r.epoch) >= r.epoch
      AND u.epoch < r.epoch THEN 'the message was there'
    WHEN r.result = 'still_undeliverable' AND u.epoch IS NULL THEN 'there was no such message'
    WHEN r.result = 'still_undeliverable' AND q.queue_count > u.asked_queue_id
      THEN concat('the topic had ', q.queue_count, ' queues')
    WHEN r.result = 'unchanged' AND coalesce(t.queue_count, 0) < r.queue_count
      THEN concat('the topic had ', coalesce(t.queue_count, 0), ' queues')
    WHEN r.result = 'bad_target' AND (r.kind IN ('half', 'schedule', 'undeliverable')
        OR r.config_value <> 0 AND r.topic <> '{UNDELIVERABLE_TOPIC}')
      THEN 'the target can be read'
  END AS problem
FROM read r
LEFT JOIN (SELECT DISTINCT * FROM discarded) x ON r.admin_offset = x.admin_offset
LEFT JOIN (SELECT DISTINCT * FROM pending_then) y ON r.admin_offset = y.admin_offset
LEFT JOIN (SELECT DISTINCT * FROM delayed_then) w ON r.admin_offset = w.admin_offset
LEFT JOIN undeliverable u
  ON r.kind = 'undeliverable' AND r.named_offset = u.queue_offset AND u.epoch < r.epoch
ASOF LEFT JOIN queue_counts q ON u.real_topic = q.topic AND r.epoch >= q.epoch
ASOF LEFT JOIN queue_counts t ON r.topic = t.topic AND r.epoch >= t.epoch
""",
    ),
    Invariant(
        "undeliverable_have_reason",
        "A message is undeliverable only when its topic lacked that queue, or could not be made.",
        f"""
WITH judged AS (
  SELECT m.*, q.queue_count, p.auto_create_topics, p.topics_max, p.group_topics_max,
    coalesce(r.producer_group, '') AS maker,
    coalesce(m.asked_queue_id, 0)
      >= coalesce(q.queue_count, CASE WHEN p.auto_create_topics THEN p.default_queue_count END)
      AS is_outside
  FROM (FROM messages WHERE topic = '{UNDELIVERABLE_TOPIC}') m
  JOIN plans p ON m.epoch = p.epoch
  LEFT JOIN records r ON m.source = r.source AND m.half_queue_id = r.queue_id
    AND m.half_queue_offset = r.queue_offset
  ASOF LEFT JOIN queue_counts q ON m.real_topic = q.topic AND m.epoch >= q.epoch
)
SELECT j.epoch, j.queue_offset, j.real_topic, j.asked_queue_id, j.reason,
  CASE
    WHEN coalesce(j.is_outside, false) <> (j.reason = 'queue_out_of_range')
      OR j.reason NOT IN ('queue_out_of_range', 'topic_not_allowed', 'group_topics_max')
      THEN concat('the topic has ', coalesce(j.queue_count::VARCHAR, 'no'), ' queues')
    WHEN j.reason IS NULL THEN 'no reason'
    WHEN j.reason <> 'queue_out_of_range' AND j.queue_count IS NOT NULL
      THEN 'there is such a topic'
    WHEN j.reason = 'topic_not_allowed' AND j.auto_create_topics
      AND coalesce(s.topics, 0) < j.topics_max THEN 'the topic had to be made'
    WHEN j.reason = 'group_topics_max' AND NOT j.auto_create_topics
      THEN 'topics were not to be made'
    WHEN j.reason = 'group_topics_max' AND coalesce(g.topics, 0) < j.group_topics_max
      THEN concat('its group had made ', coalesce(g.topics, 0), ' topics')
  END AS problem
FROM judged j
ASOF LEFT JOIN (FROM topic_counts WHERE maker IS NULL) s ON j.epoch >= s.epoch
ASOF LEFT JOIN (FROM topic_counts WHERE maker IS NOT NULL) g
  ON j.maker = g.maker AND j.epoch >= g.epoch
""",
    ),
    # A topic has the queues that commands of that epoch ask for; without a command those of first
    # use.
    Invariant(
        "catalog_grows",
        "A topic has one table, ids are 1, 2, 3 ..., and queue counts only grow, by command.",
        """
WITH requested AS (
  SELECT epoch, topic, max(queue_count) AS queue_count
  FROM commanded WHERE result IN ('created', 'grown') GROUP BY ALL
)
SELECT c.epoch, c.topic, c.table_id, c.queue_count,
  CASE
    WHEN c.first_id <> c.table_id THEN concat('the topic has table ', c.first_id)
    WHEN c.first_topic <> c.topic THEN concat('the table is of topic ', c.first_topic)
    WHEN c.table_id > c.tables OR c.table_id < 1 THEN concat('there are ', c.tables, ' topics')
    WHEN c.queue_count <= c.before_count THEN concat('it had ', c.before_count, ' queues')
    WHEN a.topic IS NULL AND c.before_count IS NOT NULL THEN 'no command asked for more queues'
    WHEN a.topic IS NULL AND NOT is_own(c.topic) AND NOT p.auto_create_topics
      THEN 'no command asked for it, and topics were not to be made'
    WHEN a.topic IS NULL AND NOT is_own(c.topic) AND c.users > p.topics_max
      THEN concat('no command asked for it, and topics_max was ', p.topics_max)
    WHEN c.producer_group IS DISTINCT FROM c.first_maker
      THEN concat('it was made by ', c.first_maker)
    WHEN c.producer_group IS NOT NULL AND c.before_count IS NULL
      AND (a.topic IS NOT NULL OR is_own(c.topic)) THEN 'no message made it'
    WHEN c.producer_group IS NOT NULL AND c.before_count IS NULL
      AND g.topics > p.group_topics_max
      THEN concat('its group had made ', g.topics, ' topics')
    WHEN c.before_count IS NULL AND p.rule_version >= 4 AND a.topic IS NULL
      AND NOT is_own(c.topic) AND NOT EXISTS (
        FROM places w JOIN records r
          ON w.source = r.source AND w.queue_id = r.queue_id AND w.queue_offset = r.queue_offset
        WHERE w.topic = c.topic AND w.epoch = c.epoch
          AND coalesce(r.producer_group, '') = c.producer_group)
      AND NOT EXISTS (
        FROM out_of_scope_places w WHERE w.topic = c.topic AND w.epoch = c.epoch)
      THEN 'no message of that group went there in this epoch'
    WHEN c.queue_count IS DISTINCT FROM coalesce(a.queue_count,
        CASE WHEN is_own(c.topic) THEN 1 ELSE p.default_queue_count END)
      THEN concat('asked for were ', a.queue_count)
    WHEN t.table_id IS NULL THEN 'there is no such table'
  END AS problem
FROM (
  SELECT *, first(table_id) OVER (PARTITION BY topic ORDER BY epoch, table_id) AS first_id,
    first(topic) OVER (PARTITION BY table_id ORDER BY epoch, topic) AS first_topic,
    first(producer_group) OVER (PARTITION BY topic ORDER BY epoch, table_id) AS first_maker,
    lag(queue_count) OVER (PARTITION BY topic, table_id ORDER BY epoch, queue_count)
      AS before_count,
    (SELECT count(DISTINCT table_id) FROM catalog) AS tables,
    count(DISTINCT CASE WHEN NOT is_own(topic) THEN topic END) OVER (ORDER BY epoch) AS users
  FROM catalog
) c
JOIN plans p ON c.epoch = p.epoch
LEFT JOIN requested a ON c.epoch = a.epoch AND c.topic = a.topic
LEFT JOIN (SELECT DISTINCT table_id FROM topic_tables) t ON c.table_id = t.table_id
LEFT JOIN topic_counts g ON c.producer_group = g.maker AND c.epoch = g.epoch
""",
    ),
)
