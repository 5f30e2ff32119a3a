"""Messages in their topics: each committed one once, at its place, with its record's content."""

from __future__ import annotations

from storage.verify.invariant import Invariant, differing
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

FRAMES = f"""
-- How many queues each topic has from an epoch on.
CREATE TABLE queue_counts AS
SELECT topic, epoch, max(max(queue_count)) OVER (PARTITION BY topic ORDER BY epoch) AS queue_count
FROM catalog GROUP BY topic, epoch;

-- Messages with their rank in the one order of their epoch.
CREATE TABLE ordered AS
WITH winners AS (
  SELECT queue_id, unit_offset, op_queue_offset, min(position) AS position
  FROM fates WHERE fate = 'wins' GROUP BY ALL
),
committed AS (
  SELECT h.source, h.queue_id, h.queue_offset, h.op_queue_offset, h.tran_seq, w.position
  FROM halves h
  JOIN winners w ON h.queue_id = w.queue_id AND h.unit_offset = w.unit_offset
    AND h.op_queue_offset = w.op_queue_offset
  WHERE h.outcome = 'COMMITTED'
)
SELECT p.*,
  CASE
    WHEN p.admin_offset IS NOT NULL THEN [3, u.real_queue_offset, 0, 0, 0]
    WHEN d.queue_id IS NOT NULL
      THEN [1, d.due_ms, CASE p.source WHEN 'half' THEN 0 ELSE 1 END, p.queue_id,
        p.queue_offset]
    ELSE [2, c.queue_id, c.op_queue_offset, c.position, coalesce(c.tran_seq, 0)]
  END AS place
FROM places p
LEFT JOIN (SELECT DISTINCT ON (source, queue_id, queue_offset) * FROM due) d
  ON p.source = d.source AND p.queue_id = d.queue_id AND p.queue_offset = d.queue_offset
LEFT JOIN committed c ON p.source = c.source AND p.queue_id = c.queue_id
  AND p.queue_offset = c.queue_offset
LEFT JOIN (SELECT DISTINCT ON (source, queue_id, queue_offset) * FROM places
           WHERE topic = '{UNDELIVERABLE_TOPIC}') u
  ON p.source = u.source AND p.queue_id = u.queue_id AND p.queue_offset = u.queue_offset
"""

_PARTS = differing(
    {
        "body": ("m.body_print", "r.body_print"),
        "keys, tags, properties, headers, born_at, group or id": (
            "m.header_print",
            "r.header_print",
        ),
        "real_topic": ("m.real_topic", "r.real_topic"),
        "asked_queue_id": ("m.asked_queue_id", "r.real_queue_id"),
    }
)

INVARIANTS = (
    Invariant(
        "queues_contiguous",
        "The queue offsets of every real queue are 0, 1, 2 ... each once, in epoch order; where "
        "older messages are deleted, they begin at the queue's floor.",
        """
SELECT epoch, topic, queue_id, queue_offset,
  CASE
    WHEN before_offset = queue_offset THEN 'the queue offset stands twice'
    WHEN queue_offset <> coalesce(before_offset + 1, queue_floor, 0)
      THEN concat('nothing from ', coalesce(before_offset + 1, queue_floor, 0), ' to ',
        queue_offset - 1)
    WHEN before_epoch > epoch THEN concat('the one before is of epoch ', before_epoch)
  END AS problem
FROM (
  SELECT epoch, topic, queue_id, queue_offset, lag(queue_offset) OVER w AS before_offset,
    lag(epoch) OVER w AS before_epoch
  FROM all_messages WHERE epoch <= (SELECT max(epoch) FROM commits)
  WINDOW w AS (PARTITION BY topic, queue_id ORDER BY queue_offset, epoch)
)
LEFT JOIN queue_floors USING (topic, queue_id)
""",
    ),
    # A committed row names the queues that its epoch delivered to; one with a count of snapshots
    # all.
    Invariant(
        "next_offsets_agree",
        "An epoch's next offsets are those of the epochs before and its own messages.",
        """
WITH recorded AS (
  SELECT DISTINCT epoch, next.topic, next.queue_id, next.next_offset
  FROM (SELECT epoch, unnest(next_offsets) AS next FROM commits)
),
added AS (
  SELECT epoch, topic, queue_id, count(*) AS n FROM all_messages
  WHERE epoch <= (SELECT max(epoch) FROM commits) AND epoch > base() GROUP BY ALL
),
deleted AS (  -- since the floor
  SELECT gone_epoch AS epoch, f.topic, f.queue_id, f.queue_floor - coalesce(b.next_offset, 0) AS n
  FROM queue_floors f
  JOIN gone ON f.topic = gone_topic
  LEFT JOIN recorded b ON b.epoch = base() AND f.topic = b.topic AND f.queue_id = b.queue_id
  WHERE gone_epoch > base() AND n > 0
),
sums AS (
  SELECT *, sum(n) OVER (PARTITION BY topic, queue_id ORDER BY epoch) AS total
  FROM (FROM added UNION ALL FROM deleted)
),
lacking AS (
  SELECT s.epoch, q.topic, q.queue_id
  FROM (SELECT DISTINCT epoch FROM commits WHERE counts['snapshot'] IS NOT NULL) s
  JOIN (SELECT topic, queue_id, min(epoch) AS epoch FROM recorded GROUP BY ALL) q
    ON q.epoch < s.epoch
  ANTI JOIN recorded t ON t.epoch = s.epoch AND t.topic = q.topic AND t.queue_id = q.queue_id
)
SELECT coalesce(t.epoch, n.epoch) AS epoch, coalesce(t.topic, n.topic) AS topic,
  coalesce(t.queue_id, n.queue_id) AS queue_id,
  CASE
    WHEN is_gone(t.topic, t.epoch) THEN NULL
    WHEN t.epoch IS NULL THEN concat(n.n, ' messages, and the epoch does not name the queue')
    WHEN t.next_offset <> coalesce(b.next_offset, 0) + coalesce(s.total, 0)
      THEN concat('the epoch says ', t.next_offset, ', there are ',
        coalesce(b.next_offset, 0) + coalesce(s.total, 0), ' messages')
  END AS problem
FROM recorded t
LEFT JOIN (FROM recorded WHERE epoch = base()) b ON t.topic = b.topic AND t.queue_id = b.queue_id
ASOF LEFT JOIN sums s ON t.topic = s.topic AND t.queue_id = s.queue_id AND t.epoch >= s.epoch
FULL JOIN (FROM added WHERE epoch IN (SELECT epoch FROM commits)) n
  ON t.epoch = n.epoch AND t.topic = n.topic AND t.queue_id = n.queue_id
UNION ALL
SELECT epoch, topic, queue_id, 'not named, though the epoch names all' FROM lacking
""",
    ),
    Invariant(
        "messages_have_their_commit",
        "Every delivered or undeliverable message is a scheduled one or of a COMMITTED half, is "
        "there once, and its outcome or delivery says where it is.",
        f"""
WITH times AS (
  SELECT source, half_queue_id, half_queue_offset, is_own(topic) AS is_own, count(*) AS n,
    min((epoch, topic, queue_id, queue_offset)) AS first
  FROM messages WHERE topic <> '{CHECK_MAX_TOPIC}' GROUP BY ALL HAVING count(*) > 1
)
SELECT m.epoch, m.topic, m.queue_id, m.queue_offset, m.source, m.half_queue_id,
  m.half_queue_offset,
  CASE
    WHEN m.source = 'half' AND h.outcome IS DISTINCT FROM 'COMMITTED'
      THEN concat('its half is ', coalesce(h.outcome, 'not ended'))
    WHEN m.source = 'half' AND m.epoch < h.end_epoch
      THEN concat('its half was committed in epoch ', h.end_epoch)
    WHEN t.n > 1 AND (m.epoch, m.topic, m.queue_id, m.queue_offset) > t.first
      THEN concat('there ', t.n, ' times')
    WHEN p.topic IS NULL THEN 'neither an outcome nor a delivery names this place'
    WHEN NOT is_own(m.topic) AND m.real_topic IS DISTINCT FROM m.topic
      THEN concat('it was sent to ', m.real_topic)
  END AS problem
FROM messages m
LEFT JOIN halves h ON m.source = h.source AND m.half_queue_id = h.queue_id
  AND m.half_queue_offset = h.queue_offset
LEFT JOIN (SELECT DISTINCT source, queue_id, queue_offset, topic, real_queue_id, real_queue_offset,
             epoch FROM places) p
  ON m.source = p.source AND m.half_queue_id = p.queue_id AND m.half_queue_offset = p.queue_offset
  AND m.topic = p.topic AND m.queue_id = p.real_queue_id
  AND m.queue_offset = p.real_queue_offset AND m.epoch = p.epoch
LEFT JOIN times t ON m.source = t.source AND m.half_queue_id = t.half_queue_id
  AND m.half_queue_offset = t.half_queue_offset AND is_own(m.topic) = t.is_own
WHERE m.topic <> '{CHECK_MAX_TOPIC}'
""",
    ),
    Invariant(
        "commits_arrive",
        "Every COMMITTED half is in exactly one of these: its topic, delayed, undeliverable.",
        """
WITH waits AS (
  SELECT DISTINCT queue_id, queue_offset, epoch FROM due WHERE source = 'half'
),
refused AS (
  SELECT DISTINCT queue_id, queue_offset, epoch FROM deliveries
  WHERE source = 'half' AND action = 'UNDELIVERABLE'
),
delivered AS (
  SELECT DISTINCT half_queue_id, half_queue_offset, topic, queue_id, queue_offset, epoch
  FROM messages WHERE source = 'half'
)
SELECT o.epoch, o.queue_id, o.queue_offset, o.real_topic,
  CASE
    WHEN o.real_queue_offset IS NOT NULL AND m.epoch IS NULL AND NOT is_gone(o.real_topic, o.epoch)
      THEN concat('not at offset ', o.real_queue_offset, ' of queue ', o.real_queue_id)
    WHEN o.real_queue_offset IS NOT NULL AND (w.epoch IS NOT NULL OR r.epoch IS NOT NULL)
      THEN 'delivered, and delayed or undeliverable too'
    WHEN o.real_queue_offset IS NULL AND w.epoch IS NULL AND r.epoch IS NULL
      THEN 'neither delivered nor delayed nor undeliverable'
  END AS problem
FROM outcomes o
LEFT JOIN delivered m ON o.queue_id = m.half_queue_id AND o.queue_offset = m.half_queue_offset
  AND o.real_topic = m.topic AND o.real_queue_id = m.queue_id
  AND o.real_queue_offset = m.queue_offset AND o.epoch = m.epoch
LEFT JOIN waits w ON o.queue_id = w.queue_id AND o.queue_offset = w.queue_offset
  AND o.epoch = w.epoch
LEFT JOIN refused r ON o.queue_id = r.queue_id AND o.queue_offset = r.queue_offset
  AND o.epoch = r.epoch
WHERE o.outcome = 'COMMITTED'
""",
    ),
    Invariant(
        "messages_equal_their_record",
        "Every message, copies of discards too, has body, keys, tags, properties and ids of its "
        "half or schedule record.",
        f"""
SELECT m.epoch, m.topic, m.queue_id, m.queue_offset, m.source, m.half_queue_id,
  m.half_queue_offset,
  CASE
    WHEN r.source IS NULL THEN 'no such record'
    WHEN r.error IS NOT NULL THEN concat('the record cannot be read: ', r.error)
    WHEN m.epoch < r.epoch THEN concat('the record landed in epoch ', r.epoch)
    ELSE {_PARTS} || ' of the record differ'
  END AS problem
FROM messages m
LEFT JOIN records r ON m.source = r.source AND m.half_queue_id = r.queue_id
  AND m.half_queue_offset = r.queue_offset
""",
    ),
    Invariant(
        "messages_in_their_queue",
        "A message is in the queue it asked for, else in the record's offset modulo the queues of "
        "its topic.",
        """
SELECT m.epoch, m.topic, m.queue_id, m.queue_offset, m.asked_queue_id, c.queue_count,
  CASE
    WHEN c.queue_count IS NULL THEN 'there was no such topic'
    WHEN is_own(m.topic) AND m.queue_id <> 0 THEN 'our own topics have one queue'
    WHEN is_own(m.topic) THEN NULL
    WHEN m.queue_id >= c.queue_count THEN 'the topic has fewer queues'
    WHEN m.queue_id IS DISTINCT FROM coalesce(m.asked_queue_id, m.half_queue_offset % c.queue_count)
      THEN concat('its queue is ', coalesce(m.asked_queue_id, m.half_queue_offset % c.queue_count))
  END AS problem
FROM messages m
ASOF LEFT JOIN queue_counts c ON m.topic = c.topic AND m.epoch >= c.epoch
""",
    ),
    Invariant(
        "queues_in_order",
        "What one epoch delivers stands in order: delayed messages that are due, then commits by "
        "operation, then resumed messages; discards stand in the order of their halves.",
        f"""
WITH placed AS (
  SELECT m.epoch, m.topic, m.queue_id, m.queue_offset,
    CASE WHEN m.topic = '{CHECK_MAX_TOPIC}' THEN [0, m.half_queue_id, m.half_queue_offset]
      ELSE o.place END AS place
  FROM messages m
  LEFT JOIN ordered o ON m.source = o.source AND m.half_queue_id = o.queue_id
    AND m.half_queue_offset = o.queue_offset AND m.topic = o.topic AND m.epoch = o.epoch
)
SELECT epoch, topic, queue_id, queue_offset,
  CASE WHEN place < lag(place) OVER (PARTITION BY topic, queue_id, epoch ORDER BY queue_offset)
    THEN 'it had to come before the one before it' END AS problem
FROM placed
""",
    ),
)
