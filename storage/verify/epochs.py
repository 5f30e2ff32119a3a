"""Epochs, their ranges and times, and the rows that they landed."""

from __future__ import annotations

from storage.verify.invariant import Invariant
from storage.verify.scope import TABLES
from storage.wire.record_kinds import KINDS

_INSTANTS = {
    "outcomes": ("decided_ms", "queue_id, queue_offset"),
    "conflicts": ("decided_ms", "queue_id, op_queue_offset"),
    "deliveries": ("decided_ms", "queue_id, queue_offset"),
    "checks": ("sent_ms", "queue_id, queue_offset"),
    "catalog": ("created_ms", "NULL, table_id"),
    "messages": ("stored_ms", "queue_id, queue_offset"),
}
_LANDED = " UNION ALL ".join(
    f"SELECT '{kind}' AS kind, queue_id, queue_offset FROM \"{kind}\"" for kind in KINDS
)

INVARIANTS = (
    Invariant(
        "lake_is_whole",
        "Every table is there, is this lake's, has reached the version that was committed, holds "
        "as many rows as were committed, and has all its files.",
        'SELECT NULL::BIGINT AS epoch, name AS "table", problem FROM table_problems',
    ),
    Invariant(
        "epochs_gapless",
        "Epochs are 1, 2, 3 ... without a gap, each planned once and committed once, with one "
        "epoch_at; only the newest can be planned and not committed.",
        """
WITH states AS (
  SELECT epoch, count(*) FILTER (state = 'planned') AS planned,
    count(*) FILTER (state = 'committed') AS committed,
    count(DISTINCT at_ms) AS instants
  FROM all_epochs GROUP BY epoch
)
SELECT n.epoch,
  CASE
    WHEN coalesce(s.planned, 0) <> 1 THEN concat('planned ', coalesce(s.planned, 0), ' times')
    WHEN s.committed > 1 THEN concat('committed ', s.committed, ' times')
    WHEN s.committed = 0 AND n.epoch < (SELECT max(epoch) FROM states) THEN 'never committed'
    WHEN s.instants > 1 THEN 'planned and committed with another epoch_at'
  END AS problem
FROM (SELECT unnest(generate_series(greatest(base(), 1),
  (SELECT max(epoch) FROM states))) AS epoch) n
LEFT JOIN states s ON n.epoch = s.epoch
""",
    ),
    Invariant(
        "time_monotonic",
        "epoch_at, and known_at and halves_known_at of every queue, never decrease.",
        """
WITH times AS (
  SELECT epoch, 'epoch_at' AS what, NULL::INTEGER AS queue_id, at_ms AS ms FROM plans
  UNION ALL
  SELECT epoch, CASE what WHEN 'op' THEN 'known_at' ELSE 'halves_known_at' END, queue_id, known_ms
  FROM known
),
paired AS (
  SELECT *, lag(ms) OVER w AS before_ms, lag(epoch) OVER w AS before_epoch
  FROM times WINDOW w AS (PARTITION BY what, queue_id ORDER BY epoch)
)
SELECT epoch, what, queue_id,
  CASE
    WHEN ms < before_ms THEN concat(before_ms - ms, ' ms before that of epoch ', before_epoch)
    WHEN before_epoch < epoch - 1 THEN 'not known in the epoch before, though known earlier'
  END AS problem
FROM paired
""",
    ),
    # The newest instant at which Kafka reported an end of a queue that was landed; it never
    # decreases. A report of a later epoch counts as one at this epoch's `epoch_at`: the end was
    # landed by then. What Kafka reported in epochs below the floor is deleted: it was at or before
    # `epoch_at` of the floor's epoch. While the half topic lacks an op queue's partition, all its
    # halves are known; when it gets the partition, that stays so up to the epoch before.
    Invariant(
        "c_is_known",
        "known_at and halves_known_at are never after the newest instant at which Kafka named an "
        "end that is landed.",
        """
WITH ends AS (
  SELECT kind, queue_id, end_offset, max(ms) AS ms FROM (
    SELECT kind, queue_id, end_offset, at_ms AS ms FROM ranges
    UNION ALL
    SELECT kind, queue_id, asked_end_offset, asked_ms FROM ranges
    WHERE asked_end_offset IS NOT NULL)
  GROUP BY kind, queue_id, end_offset
),
newest AS (
  SELECT r.epoch, r.kind, r.queue_id, CASE WHEN e.ms < r.at_ms THEN e.ms
    WHEN e.ms IS NOT NULL THEN r.at_ms END AS ms
  FROM (FROM ranges WHERE kind IN ('half', 'op')) r
  ASOF LEFT JOIN ends e ON r.kind = e.kind AND r.queue_id = e.queue_id
    AND r.to_offset >= e.end_offset
),
came AS (
  SELECT 'half' AS what, f.queue_id, f.epoch, p.at_ms AS before_ms
  FROM (SELECT queue_id, min(epoch) AS epoch FROM ranges WHERE kind = 'half' GROUP BY queue_id) f
  JOIN plans p ON p.epoch = f.epoch - 1
)
SELECT k.epoch, k.what, k.queue_id,
  CASE WHEN k.known_ms > greatest((SELECT at_ms FROM plans WHERE epoch = base()), c.before_ms,
      coalesce(n.ms, CASE WHEN n.epoch IS NULL THEN p.at_ms END, -1))
    THEN 'ahead of what was landed' END AS problem
FROM known k
JOIN plans p ON k.epoch = p.epoch
LEFT JOIN newest n ON k.epoch = n.epoch AND k.what = n.kind AND k.queue_id = n.queue_id
LEFT JOIN came c ON k.what = c.what AND k.queue_id = c.queue_id AND k.epoch >= c.epoch
""",
    ),
    Invariant(
        "ranges_adjoin",
        "An epoch's range of a Kafka partition begins where the epoch before ended.",
        """
SELECT epoch, topic, queue_id AS partition, from_offset, to_offset,
  CASE
    WHEN before_epoch < epoch - 1 THEN 'not in the epoch before'
    WHEN from_offset <> before_offset THEN 'the range before ended at ' || before_offset
    WHEN to_offset < from_offset THEN 'ends before it begins'
    WHEN end_offset < to_offset THEN 'beyond the end offset that Kafka reported, ' || end_offset
    WHEN last_epoch < (SELECT max(epoch) FROM plans) AND epoch = last_epoch
      THEN 'not in the epoch after'
  END AS problem
FROM (
  SELECT *, lag(to_offset) OVER w AS before_offset, lag(epoch) OVER w AS before_epoch,
    max(epoch) OVER (PARTITION BY topic, queue_id) AS last_epoch
  FROM ranges WINDOW w AS (PARTITION BY topic, queue_id ORDER BY epoch)
)
""",
    ),
    Invariant(
        "one_log",
        "All epochs are of the same Kafka cluster and the same topics.",
        """
WITH ids AS (
  SELECT epoch, 'cluster' AS what, cluster_id AS id FROM all_epochs
  WHERE state = 'planned' AND epoch IN (SELECT epoch FROM plans)
  UNION ALL
  SELECT epoch, entry.key, entry.value FROM (
    SELECT epoch, unnest(map_entries(topic_ids)) AS entry FROM all_epochs
    WHERE state = 'planned' AND epoch IN (SELECT epoch FROM plans))
)
SELECT epoch, what, id,
  CASE WHEN id IS DISTINCT FROM before_id THEN concat('its id was ', before_id) END AS problem
FROM (
  SELECT *, lag(id, 1, id) OVER (PARTITION BY what ORDER BY epoch) AS before_id FROM ids
)
""",
    ),
    Invariant(
        "offsets_once",
        "Each landed Kafka offset is in exactly one row.",
        " UNION ALL ".join(
            f"""
SELECT max(epoch) AS epoch, '{kind}' AS "table", queue_id, queue_offset,
  CASE WHEN count(*) > 1 THEN concat('in ', count(*), ' rows') END AS problem
FROM "{kind}" GROUP BY queue_id, queue_offset"""
            for kind in KINDS
        ),
    ),
    Invariant(
        "rows_in_ranges",
        "Every landed row lies in its epoch's range of its Kafka partition.",
        " UNION ALL ".join(
            f"""
SELECT t.epoch, '{kind}' AS "table", t.queue_id, t.queue_offset,
  CASE
    WHEN r.epoch IS NULL THEN 'its epoch has no range of this partition'
    WHEN t.queue_offset < r.from_offset OR t.queue_offset >= r.to_offset
      THEN concat('outside the range ', r.from_offset, ' to ', r.to_offset)
  END AS problem
FROM "{kind}" t
LEFT JOIN ranges r ON r.kind = '{kind}' AND t.epoch = r.epoch AND t.queue_id = r.queue_id"""
            for kind in KINDS
        ),
    ),
    # A command can be landed some epochs after the one that passes what it names.
    Invariant(
        "losses_are_accepted",
        "Offsets that an epoch passes as lost were accepted by a command, and hold no row.",
        f"""
WITH landed AS ({_LANDED})
SELECT l.epoch, l.topic, l.queue_id AS partition, l.first_offset, l.last_offset,
  CASE
    WHEN r.epoch IS NULL OR l.last_offset >= r.to_offset THEN 'the epoch ends before them'
    WHEN c.admin_offset IS NULL
        AND l.admin_offset < (SELECT max(to_offset) FROM ranges WHERE kind = 'admin')
      THEN concat('no command at offset ', l.admin_offset, ' accepts that')
    WHEN EXISTS (
        FROM landed o WHERE o.kind = r.kind AND o.queue_id = l.queue_id
        AND o.queue_offset BETWEEN l.first_offset AND l.last_offset)
      THEN 'there are rows'
  END AS problem
FROM (FROM losses WHERE epoch > base() AND epoch <= newest()) l
LEFT JOIN ranges r ON r.epoch = l.epoch AND r.topic = l.topic AND r.queue_id = l.queue_id
LEFT JOIN commanded c ON c.admin_offset = l.admin_offset AND c.lost_kind = r.kind
  AND c.named_queue = l.queue_id AND c.named_offset = l.first_offset
  AND c.lost_last = l.last_offset AND c.result = 'noted'
""",
    ),
    Invariant(
        "rows_are_planned",
        "Every row belongs to an epoch that was planned.",
        " UNION ALL ".join(
            f"""
SELECT t.epoch, '{table}' AS "table", t.n AS rows,
  CASE WHEN e.epoch IS NULL THEN 'no such epoch is planned' END AS problem
FROM (SELECT epoch, count(*) AS n FROM all_{table} WHERE epoch >= base() GROUP BY epoch) t
LEFT JOIN (SELECT DISTINCT epoch FROM all_epochs) e ON t.epoch = e.epoch"""
            for table in TABLES
        ),
    ),
    Invariant(
        "rows_have_their_t",
        "Every decided row carries epoch_at of its epoch.",
        " UNION ALL ".join(
            f"""
SELECT t.epoch, '{table}' AS "table", {place.split(", ")[0]} AS queue_id,
  {place.split(", ")[1]} AS "offset",
  CASE WHEN t.{instant} IS DISTINCT FROM p.at_ms
    THEN concat(t.{instant} - p.at_ms, ' ms beside epoch_at') END AS problem
FROM {table} t JOIN plans p ON t.epoch = p.epoch"""
            for table, (instant, place) in _INSTANTS.items()
        ),
    ),
)
# Of lakes in which every epoch records what it wrote: from format 2 on.
RECORDED = (
    # `reading.py` fills `chain`: a row for each row of `epochs`.
    Invariant(
        "epochs_chained",
        "Every row of epochs holds a digest of itself and of the row before it.",
        """
SELECT epoch, state, problem FROM chain WHERE epoch <= (SELECT max(epoch) FROM commits)
""",
    ),
)
