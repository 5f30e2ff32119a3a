"""The scope of `verify`: of a lake with a floor, the rows that depend on nothing below it.

Rows below the floor are deleted sooner or later. So a record that landed up to the floor's epoch is
out of scope, and so is a half that depends on one: its operation had landed before and waited, or
parts of its set are below the floor. `replay --verify` runs all epochs above the floor, and judges
these, too. Views with the tables' own names hold the rows in scope. Made before them:

base            the floor's epoch; 0 without a floor
newest          the last epoch that is judged
old_ends        where landing stood after the floor's epoch (`old_kind`: the table)
out_of_scope    halves above the floor that depend on something below it
in_scope        whether a record is judged
"""

from __future__ import annotations

from duckdb import DuckDBPyConnection

# By table: the records that a row is about, as pairs of a kind (a text or a column) and an offset.
_ABOUT = {
    "half": [("'half'", "queue_offset")],
    "schedule": [],
    "op": [],
    "admin": [],
    "delayed": [("source", "queue_offset")],
    "deliveries": [("source", "queue_offset")],
    "outcomes": [("'half'", "queue_offset")],
    "conflicts": [("'op'", "op_queue_offset"), ("'half'", "half_queue_offset")],
    "checks": [("'half'", "queue_offset")],
    "pending": [("'half'", "queue_offset")],
    "waiting": [("'op'", "op_queue_offset"), ("'half'", "named")],
    "messages": [("source", "half_queue_offset")],
}
TABLES = (*_ABOUT, "catalog")
# The row of a naming that left lacks the half that it named.
_ROWS = {
    "waiting": """(SELECT *, max(half_queue_offset)
  OVER (PARTITION BY queue_id, op_queue_offset, position) AS named FROM all_waiting)"""
}

_BASE = """
SELECT coalesce(max(s.floor_epoch), 0) FROM all_epochs e
JOIN parameter_sets s ON e.parameters_id = s.id
WHERE e.state = 'planned' AND e.epoch = {last}
"""
_OLDEST_RULES = """
SELECT coalesce(min(rule_version), 5) FROM all_epochs WHERE state = 'planned' AND epoch <= {last}
"""
# Since rule version 5 TRAN_SIZE 1 makes a set, and an operation is decided once for each set.
_ONCE_FOR_EACH_SET = {
    False: (
        "CREATE MACRO makes_set(size) AS coalesce(size, 0) > 1",
        "CREATE MACRO decides_once() AS false",
    ),
    True: (
        "CREATE MACRO makes_set(size) AS coalesce(size, 0) > 0",
        "CREATE MACRO decides_once() AS true",
    ),
}
_BELOW_FLOOR = """
CREATE TABLE old_ends AS
SELECT CASE r.topic WHEN s.half_topic THEN 'half' WHEN s.op_topic THEN 'op'
    WHEN s.schedule_topic THEN 'schedule' END AS old_kind, r.partition AS old_queue,
  r.to_offset AS old_end
FROM (SELECT parameters_id, unnest(ranges) AS r FROM all_epochs
      WHERE state = 'planned' AND epoch = base()) e
JOIN parameter_sets s ON e.parameters_id = s.id;

CREATE TABLE out_of_scope AS
WITH reached AS (  -- by an operation that had landed up to the floor
  SELECT o.queue_id, o.queue_offset FROM all_outcomes o
  JOIN old_ends ON old_kind = 'op' AND o.queue_id = old_queue AND o.op_queue_offset < old_end
  UNION
  SELECT queue_id, half_queue_offset FROM all_waiting WHERE epoch = base() AND change = 'snapshot'
),
-- The first half of its TRAN_SEQ above the floor that is a duplicate: another stands below.
members AS (
  SELECT h.queue_id, h.queue_offset, h.producer_group, h.transaction_id, h.tran_size, h.tran_seq,
    r.queue_id IS NOT NULL OR coalesce(o.cause = 'duplicate_in_set', false) AND row_number() OVER (
      PARTITION BY h.queue_id, h.producer_group, h.transaction_id, h.tran_size, h.tran_seq
      ORDER BY h.queue_offset) = 1 AS is_reached
  FROM all_half h
  LEFT JOIN reached r ON h.queue_id = r.queue_id AND h.queue_offset = r.queue_offset
  LEFT JOIN (FROM all_outcomes WHERE outcome <> 'DISCARDED' AND epoch > base()) o
    ON h.queue_id = o.queue_id AND h.queue_offset = o.queue_offset
  WHERE h.epoch > base() AND h.error IS NULL AND makes_set(h.tran_size)
),
alive AS (
  SELECT DISTINCT queue_id, producer_group, transaction_id, tran_size FROM all_pending
  WHERE epoch = base() AND change = 'snapshot' AND makes_set(tran_size)
),
sets AS (
  SELECT queue_id, producer_group, transaction_id, tran_size FROM members
  GROUP BY ALL HAVING bool_or(is_reached) OR count(DISTINCT tran_seq) < any_value(tran_size)
  UNION
  FROM alive
)
SELECT queue_id AS out_queue, queue_offset AS out_offset FROM reached
UNION
SELECT queue_id, queue_offset FROM members
SEMI JOIN sets USING (queue_id, producer_group, transaction_id, tran_size)
"""
_IN_SCOPE = {
    False: "CREATE MACRO in_scope(k, q, o) AS true",
    # The tables have column names that no other has: DuckDB puts a macro's arguments in as text.
    True: """
CREATE MACRO in_scope(k, q, o) AS
  o IS NULL OR (
    NOT EXISTS (FROM old_ends WHERE old_kind = k AND old_queue = q AND o < old_end)
    AND NOT (k = 'half' AND EXISTS (
      FROM out_of_scope WHERE out_queue = q AND out_offset = o)))
""",
}


def make_views(connection: DuckDBPyConnection, last: int, has_few_rows: bool) -> int:
    """Makes the views up to the last committed epoch: tables, if they have few rows.

    Output: the epoch of its floor.
    """
    (oldest_rules,) = connection.execute(_OLDEST_RULES.format(last=last)).fetchall()[0]
    for macro in _ONCE_FOR_EACH_SET[oldest_rules >= 5]:
        connection.execute(macro)

    (base,) = connection.execute(_BASE.format(last=last)).fetchall()[0]
    connection.execute(f"CREATE MACRO base() AS {base}::BIGINT")
    connection.execute(f"CREATE MACRO newest() AS {last}::BIGINT")

    if base:
        connection.execute(_BELOW_FLOOR)
    connection.execute(_IN_SCOPE[base > 0])

    kind = "TABLE" if has_few_rows else "VIEW"
    for table in TABLES:
        connection.execute(f"CREATE {kind} {table} AS {_rows_in_scope(table, base, last)}")

    return int(base)


def _rows_in_scope(table: str, base: int, last: int) -> str:
    """Returns SQL of a table's rows in scope."""
    rows = f"all_{table}"
    columns = "*"
    conditions = [f"epoch <= {last}"]

    if base and table in _ROWS:
        rows = _ROWS[table]
        columns = "* EXCLUDE (named)"

    if base and table != "catalog":
        queue = "half_queue_id" if table == "messages" else "queue_id"
        conditions.append(f"epoch > {base}")
        conditions += [f"in_scope({kind}, {queue}, {offset})" for kind, offset in _ABOUT[table]]

    return f"SELECT {columns} FROM {rows} WHERE {' AND '.join(conditions)}"
