"""The offsets of consumer groups."""

from __future__ import annotations

from storage.verify.invariant import Invariant

INVARIANTS = (
    # Consumers can read what an epoch has written before the epoch is committed.
    Invariant(
        "consumers_within_queues",
        "No consumer group is beyond the end of a queue.",
        """
WITH ends AS (
  SELECT topic, queue_id, max(end_offset) AS end_offset
  FROM (SELECT topic, queue_id, queue_offset + 1 AS end_offset FROM all_messages
        UNION ALL FROM queue_floors) GROUP BY ALL
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
""",
    ),
)
