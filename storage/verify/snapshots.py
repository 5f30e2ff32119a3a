"""Snapshots of the state: each holds the result of all changes up to it."""

from __future__ import annotations

from storage.verify.invariant import HALF, MESSAGE, NAMING, Invariant, differing, same
from storage.verify.state import NEVER, OF_HALVES, OF_MESSAGES, OF_NAMINGS


def _snapshot(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Returns SQL that compares every snapshot of a table with the changes up to it.

    What was put is in each snapshot until the next change of its key: so many rows are compared as
    the snapshots hold, and not each snapshot with all changes of the lake.
    """
    key_columns = ", ".join(key)
    row_key = ", ".join(f"coalesce(n.{name}, r.{name})::VARCHAR" for name in key)
    pairs = {name: (f"r.{name}", f"n.{name}") for name in columns}

    return f"""
SELECT coalesce(n.snapshot, r.epoch) AS epoch, '{table}' AS "table",
  concat_ws('-', {row_key}) AS place,
  CASE
    WHEN r.epoch IS NULL THEN 'not in the snapshot'
    WHEN n.snapshot IS NULL THEN 'in the snapshot, and no change put it there'
    WHEN r.times > 1 THEN concat(r.times, ' times in the snapshot')
    ELSE {differing(pairs)} || ' is not what the changes say'
  END AS problem
FROM (
  SELECT s.epoch AS snapshot, c.*
  FROM (
    SELECT *, lead(epoch) OVER (PARTITION BY {key_columns} ORDER BY epoch) AS next_change
    FROM {table} WHERE change <> 'snapshot'
  ) c
  JOIN (SELECT DISTINCT epoch FROM commits WHERE counts['snapshot'] = 1) s
    ON s.epoch >= c.epoch AND s.epoch < coalesce(c.next_change, {NEVER})
  WHERE c.change = 'put'
) n
FULL JOIN (SELECT *, count(*) OVER (PARTITION BY epoch, {key_columns}) AS times FROM {table}
           WHERE change = 'snapshot') r
  ON n.snapshot = r.epoch AND {same(key, "n", "r")}"""


# Of lakes in which every epoch recorded what it changed in the state: from format 2 on.
RECORDED = (
    Invariant(
        "snapshots_are_changes",
        "A snapshot holds the result of all changes up to it.",
        " UNION ALL ".join(
            (
                _snapshot("pending", HALF, OF_HALVES),
                _snapshot("waiting", NAMING, OF_NAMINGS),
                _snapshot("delayed", MESSAGE, OF_MESSAGES),
            )
        ),
    ),
)
