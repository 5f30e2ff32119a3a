"""The row counts that an epoch recorded: of each kind, and of each table after it."""

from __future__ import annotations

from storage.verify.invariant import Invariant
from storage.verify.scope import TABLES
from storage.wire.record_kinds import KINDS

_COUNTED_TABLES = [
    table for table in TABLES if table not in ("half", "schedule", "catalog", "messages")
]
_COUNTED = " UNION ALL ".join(
    [
        *(
            f"SELECT epoch, 'landed_{kind}' AS name, count(*) AS n FROM all_{kind} GROUP BY epoch"
            for kind in KINDS
        ),
        *(
            f"SELECT epoch, '{table}', count(*) FROM all_{table} GROUP BY epoch"
            for table in _COUNTED_TABLES
        ),
        "SELECT epoch, 'unreadable_half', count(*) FROM all_half WHERE error IS NOT NULL"
        " GROUP BY epoch",
        "SELECT epoch, lower(outcome), count(*) FROM all_outcomes GROUP BY ALL",
        "SELECT epoch, 'placed', count(*) FROM all_messages GROUP BY epoch",
    ]
)
_WRITTEN = " UNION ALL ".join(
    f"SELECT '{table}' AS name, epoch, count(*) AS n FROM all_{table} GROUP BY epoch"
    for table in TABLES
    if table != "messages"
)

INVARIANTS = (
    # `due` counts the checks that were due, `checks` the attempts; `snapshot` says if there is one.
    Invariant(
        "counts_add_up",
        "Every count of an epoch is the number of its rows.",
        f"""
WITH recorded AS (
  SELECT epoch, entry.key AS name, entry.value AS n
  FROM (SELECT DISTINCT epoch, unnest(map_entries(counts)) AS entry FROM commits)
),
counted AS (SELECT * FROM ({_COUNTED}) WHERE epoch IN (SELECT epoch FROM commits))
SELECT coalesce(t.epoch, c.epoch) AS epoch, coalesce(t.name, c.name) AS counted,
  CASE
    WHEN coalesce(t.name, c.name) = 'due' THEN
      CASE WHEN t.n < k.n THEN concat(t.n, ' were due, ', k.n, ' were asked') END
    WHEN coalesce(t.name, c.name) = 'snapshot' THEN NULL
    WHEN coalesce(t.name, c.name) = 'placed'
      AND coalesce(t.epoch, c.epoch) <= (SELECT max(gone_epoch) FROM gone) THEN NULL
    WHEN coalesce(t.n, 0) <> coalesce(c.n, 0)
      THEN concat('the epoch says ', coalesce(t.n, 0), ', there are ', coalesce(c.n, 0))
  END AS problem
FROM recorded t
FULL JOIN counted c ON t.epoch = c.epoch AND t.name = c.name
LEFT JOIN counted k ON t.epoch = k.epoch AND k.name = CASE t.name WHEN 'due' THEN 'checks' END
""",
    ),
)
# Of lakes in which every epoch records what it wrote: from format 2 on.
RECORDED = (
    # The rows of each table after an epoch that wrote it; up to the floor's epoch the count that
    # this one recorded.
    Invariant(
        "rows_are_committed",
        "Every epoch names the tables that it wrote, with how many rows they hold after it.",
        f"""
WITH written AS (
  {_WRITTEN}
  UNION ALL
  SELECT 'topics/' || t.table_id, m.epoch, count(*) FROM all_messages m
  JOIN (SELECT DISTINCT * FROM topic_tables) t ON m.topic = t.topic GROUP BY ALL
),
recorded AS (
  SELECT DISTINCT epoch, entry."table" AS name, entry.rows AS n
  FROM (SELECT epoch, unnest(tables) AS entry FROM commits)
),
deleted AS (  -- messages, since the floor
  SELECT gone_table AS name, gone_epoch AS epoch, gone_rows - coalesce(b.n, 0) AS n
  FROM gone LEFT JOIN recorded b ON b.epoch = base() AND gone_table = b.name
  WHERE gone_epoch > base()
),
sums AS (
  SELECT name, epoch, sum(n) OVER (PARTITION BY name ORDER BY epoch) AS n
  FROM (FROM written UNION ALL FROM deleted)
  WHERE base() = 0 OR epoch > base()
)
SELECT coalesce(t.epoch, w.epoch) AS epoch, coalesce(t.name, w.name) AS "table",
  CASE
    WHEN d.epoch >= t.epoch THEN NULL
    WHEN t.name IS NULL THEN 'written in this epoch, which does not name it'
    WHEN t.n <> coalesce(b.n, 0) + coalesce(s.n, 0)
      THEN concat('the epoch says ', t.n, ' rows, there are ', coalesce(b.n, 0) + coalesce(s.n, 0))
  END AS problem
FROM recorded t
ASOF LEFT JOIN sums s ON t.name = s.name AND t.epoch >= s.epoch
LEFT JOIN (FROM recorded WHERE epoch = base()) b ON t.name = b.name
LEFT JOIN deleted d ON t.name = d.name
FULL JOIN (FROM written WHERE epoch IN (SELECT epoch FROM commits)) w
  ON t.name = w.name AND t.epoch = w.epoch
""",
    ),
)
