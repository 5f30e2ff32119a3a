"""What is delivered where: the real topic, its queue and its queue offset.

Order within an epoch: due delayed messages by (deliver_at, source, queue, offset), then committed
halves by (op queue, op offset, position, TRAN_SEQ), then resumed undeliverable messages by their
offset there; discards by half coordinate. Queue offsets are contiguous from 0.

Source: CommitLog's queue offsets (one counter a queue); PROTOCOL.md "Delivery".
"""

from __future__ import annotations

import pyarrow as pa

from checker.frames import NEXT_OFFSETS, PLACEMENTS, TOPICS, Parameters
from checker.sql import run
from txlake.protocol import CHECK_MAX_TOPIC, SYSTEM_REAL_TOPICS, UNDELIVERABLE_TOPIC

_ORDERED = """
SELECT row_number() OVER (ORDER BY phase, k1, k2, k3, k4) AS rank, *
FROM (
  SELECT 1 AS phase, deliver_at AS k1, CASE source WHEN 'half' THEN 0 ELSE 1 END::BIGINT AS k2,
    queue_id::BIGINT AS k3, queue_offset AS k4,
    source, queue_id, queue_offset, real_topic, real_queue_id, NULL::BIGINT AS admin_offset
  FROM due_delayed
  UNION ALL
  SELECT 2, queue_id, op_queue_offset, position, coalesce(tran_seq, 0),
    'half', queue_id, queue_offset, real_topic, real_queue_id, NULL
  FROM committed
  UNION ALL
  SELECT 3, undeliverable_offset, 0, 0, 0,
    source, queue_id, queue_offset, real_topic, real_queue_id, admin_offset
  FROM resumed
)
"""

# A topic is made on first use, in name order while there is room; it has the default queue count.
_NEW_TOPICS = """
SELECT real_topic AS topic FROM ordered
WHERE $auto_create_topics AND (real_queue_id IS NULL OR real_queue_id < $default_queue_count)
  AND real_topic NOT IN (SELECT topic FROM topics)
GROUP BY real_topic ORDER BY real_topic
LIMIT greatest(0, $topics_max - (SELECT count(*) FROM topics WHERE NOT list_contains($own, topic)))
"""

_ROUTED = """
SELECT o.*,
  CASE
    WHEN coalesce(o.real_queue_id, 0) >= coalesce(t.queue_count, $default_queue_count)
      AND (t.topic IS NOT NULL OR $auto_create_topics) THEN 'queue_out_of_range'
    WHEN t.topic IS NULL THEN 'topic_not_allowed'
  END AS reason,
  coalesce(o.real_queue_id, o.queue_offset % t.queue_count)::INTEGER AS target_queue_id
FROM ordered o LEFT JOIN topics t ON o.real_topic = t.topic
"""

_PLACED = """
WITH wanted AS (
  SELECT CASE WHEN reason IS NULL THEN real_topic ELSE $undeliverable END AS topic,
    CASE WHEN reason IS NULL THEN target_queue_id ELSE 0 END AS real_queue_id,
    rank, source, queue_id, queue_offset, real_topic, real_queue_id AS asked_queue_id, reason
  FROM routed WHERE reason IS NULL OR phase < 3
  UNION ALL
  SELECT $check_max, 0, row_number() OVER (ORDER BY queue_id, queue_offset), 'half', queue_id,
    queue_offset, real_topic, real_queue_id, cause
  FROM discarded
)
SELECT w.topic, w.real_queue_id::INTEGER AS real_queue_id,
  coalesce(n.next_offset, 0)
    + row_number() OVER (PARTITION BY w.topic, w.real_queue_id ORDER BY rank) - 1
    AS real_queue_offset,
  source, w.queue_id, w.queue_offset, real_topic, asked_queue_id, reason
FROM wanted w
LEFT JOIN next_offsets n ON w.topic = n.topic AND w.real_queue_id = n.queue_id
ORDER BY w.topic, w.real_queue_id, real_queue_offset
"""


def in_order(due_delayed: pa.Table, committed: pa.Table, resumed: pa.Table) -> pa.Table:
    """Put all that is to be delivered into the one order of the epoch."""
    return run(_ORDERED, due_delayed=due_delayed, committed=committed, resumed=resumed)


def new_topics(
    ordered: pa.Table,
    discarded: pa.Table,
    topics: pa.Table,
    asked_for: dict[str, int],
    parameters: Parameters,
) -> pa.Table:
    """Give the topics to be made now, ids in name order. Output: TOPICS.

    `asked_for`: queue counts of the topics that an operator makes in this epoch. `topics_max`
    counts the topics that users named; TRANS_CHECK_MAX_TIME_TOPIC and TRANS_UNDELIVERABLE_TOPIC
    are made whenever they are needed.
    """
    values = {
        "auto_create_topics": parameters.auto_create_topics,
        "default_queue_count": parameters.default_queue_count,
        "topics_max": parameters.topics_max,
        "own": list(SYSTEM_REAL_TOPICS),
    }
    counts = dict(asked_for)
    with_asked = pa.concat_tables([topics, _numbered(topics, counts)])
    names = run(_NEW_TOPICS, values, ordered=ordered, topics=with_asked)["topic"].to_pylist()
    counts |= dict.fromkeys(names, parameters.default_queue_count)
    routed = route(ordered, pa.concat_tables([topics, _numbered(topics, counts)]), parameters)
    known = set(topics["topic"].to_pylist())
    if discarded.num_rows and CHECK_MAX_TOPIC not in known:
        counts[CHECK_MAX_TOPIC] = 1
    undeliverable = run("SELECT 1 FROM routed WHERE reason IS NOT NULL LIMIT 1", routed=routed)
    if undeliverable.num_rows and UNDELIVERABLE_TOPIC not in known:
        counts[UNDELIVERABLE_TOPIC] = 1
    return _numbered(topics, counts)


def _numbered(topics: pa.Table, queue_counts: dict[str, int]) -> pa.Table:
    first = 1 + max(topics["table_id"].to_pylist(), default=0)
    return pa.Table.from_pylist(
        [
            {"topic": name, "table_id": first + place, "queue_count": queue_counts[name]}
            for place, name in enumerate(sorted(queue_counts))
        ],
        schema=TOPICS,
    )


def route(ordered: pa.Table, topics: pa.Table, parameters: Parameters) -> pa.Table:
    """Say of each message whether its topic can take it (`reason` is null) and in which queue."""
    return run(
        _ROUTED,
        {
            "default_queue_count": parameters.default_queue_count,
            "auto_create_topics": parameters.auto_create_topics,
        },
        ordered=ordered,
        topics=topics,
    )


def place(routed: pa.Table, discarded: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Give every message its queue offset. Output: PLACEMENTS.

    A resumed message that still cannot be delivered stays where it is: no row.
    """
    return run(
        _PLACED,
        {"undeliverable": UNDELIVERABLE_TOPIC, "check_max": CHECK_MAX_TOPIC},
        routed=routed,
        discarded=discarded,
        next_offsets=next_offsets,
    ).cast(PLACEMENTS)


def advance_offsets(next_offsets: pa.Table, placements: pa.Table) -> pa.Table:
    """Give the next offset of each real queue after the placements. Output: NEXT_OFFSETS."""
    if placements.num_rows == 0:
        return next_offsets
    return run(
        """
        SELECT topic, queue_id, max(next_offset) AS next_offset FROM (
          SELECT * FROM next_offsets
          UNION ALL
          SELECT topic, real_queue_id, real_queue_offset + 1 FROM placements)
        GROUP BY topic, queue_id ORDER BY topic, queue_id
        """,
        next_offsets=next_offsets,
        placements=placements,
    ).cast(NEXT_OFFSETS)
