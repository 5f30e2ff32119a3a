"""The state that the job recorded: `pending`, `waiting` and `delayed`.

It is compared with what all other tables say, at every epoch in which something had to change or
was recorded as changed; a snapshot of it, with the changes up to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.verify.invariant import HALF, MESSAGE, NAMING, Invariant, differing, same
from txlake.protocol import INSTANT_MS_MAX

NEVER = 9223372036854775807


def _changes(table: str, key: Iterable[str]) -> str:
    """Returns SQL for one frame's changes, each with the change of its key before it."""
    columns = ", ".join(key)

    return f"""
CREATE TABLE {table}_changes AS
SELECT *, lag(change) OVER of_{table} AS before_change,
  lag(COLUMNS(* EXCLUDE (change))) OVER of_{table} AS "before_\\0",
  count(*) OVER (PARTITION BY {columns}, epoch) AS times
FROM {table} WHERE change <> 'snapshot'
WINDOW of_{table} AS (PARTITION BY {columns} ORDER BY epoch);
"""


FRAMES = f"""
-- The epochs at which the state of a half is compared: when it had to change, or did.
CREATE TABLE points AS
SELECT DISTINCT p.epoch AS point, p.queue_id, p.queue_offset FROM (
  SELECT epoch, queue_id, queue_offset FROM pending WHERE change <> 'snapshot'
  UNION ALL
  SELECT unnest([epoch, end_epoch]), queue_id, queue_offset FROM halves
  WHERE coalesce(end_epoch, {NEVER}) > epoch
  UNION ALL
  SELECT epoch, queue_id, queue_offset FROM attempts
  UNION ALL
  SELECT epoch, queue_id, queue_offset FROM outcomes WHERE outcome = 'DISCARDED'
  UNION ALL
  SELECT r.epoch, h.queue_id, h.queue_offset FROM rearms r
  JOIN halves h ON r.queue_id = h.queue_id AND r.unit_offset = h.unit_offset AND h.epoch < r.epoch
  UNION ALL
  SELECT resolve_epoch, queue_id, unit_offset FROM fates WHERE fate = 'answer'
) p WHERE p.epoch IS NOT NULL;

-- The halves that the state has to hold at a point: they had landed and not ended.
CREATE TABLE alive AS
SELECT p.point, h.*, u.rearm_epochs, u.rearm_ats, arm_at(u.rearm_epochs, p.point) AS arm,
  CASE WHEN u.immunity_ms IS NOT NULL THEN least(u.stored_ms + u.immunity_ms, {INSTANT_MS_MAX})
    END AS deadline_ms
FROM points p
JOIN halves h ON {same(HALF, "p", "h")} AND h.epoch <= p.point
  AND coalesce(h.end_epoch, {NEVER}) > p.point
JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset;
{_changes("pending", HALF)}
{_changes("waiting", NAMING)}
{_changes("delayed", MESSAGE)}
"""

# The columns that a pending half has from its record.
_OF_RECORD = (
    "unit_offset",
    "producer_group",
    "transaction_id",
    "tran_size",
    "tran_seq",
    "real_topic",
    "real_queue_id",
    "delay_level",
    "delay_ms",
    "deliver_ms",
    "immunity_ms",
)
OF_HALVES = (
    *_OF_RECORD,
    "arm",
    "stored_ms",
    "age_from_ms",
    "check_times",
    "unacknowledged",
    "checked_ms",
    "last_answer_ms",
    "deadline_ms",
    "discard_cause",
    "discards",
)
OF_NAMINGS = (
    "half_queue_offset",
    "decision",
    "producer_group",
    "transaction_id",
    "cause",
    "stored_ms",
    "landed_ms",
    "decided_sets",
    "is_signed",
)
_OPERATION = ("queue_id", "op_queue_offset")
_NAMING_COLUMNS = {
    **{name: (f"r.{name}", f"w.{name}") for name in OF_NAMINGS},
    "decided_sets": ("CASE WHEN w.is_whole THEN r.decided_sets END", "w.decided_sets"),
}
OF_MESSAGES = ("deliver_ms", "real_topic", "real_queue_id", "producer_group")


def _needless(columns: tuple[str, ...]) -> str:
    """Returns SQL of the reason why a recorded change was needless; null if it was needed."""
    pairs = {name: (f"r.{name}", f"r.before_{name}") for name in columns}

    return f"""CASE
    WHEN r.times > 1 THEN concat(r.times, ' rows of this epoch')
    WHEN r.change NOT IN ('put', 'left') THEN 'no such change'
    WHEN r.change = 'left' AND r.before_change IS DISTINCT FROM 'put' THEN 'left, and was not there'
    WHEN r.change = 'put' AND r.before_change = 'put' AND {differing(pairs)} IS NULL
      THEN 'changes nothing'
  END"""


_PENDING_COLUMNS = differing(
    {
        **{name: (f"r.{name}", f"a.{name}") for name in ("arm", *_OF_RECORD)},
        "stored_at": ("r.stored_ms", "coalesce(a.rearm_ms, a.stored_ms)"),
        "age_from_at": ("r.age_from_ms", "coalesce(a.rearm_ms, a.age_from_ms)"),
        "deadline_at": ("r.deadline_ms", "CASE WHEN p.rule_version >= 5 THEN a.deadline_ms END"),
        "check_times": ("r.check_times", "coalesce(c.times, 0)"),
        "unacknowledged": (
            "r.unacknowledged",
            "CASE WHEN p.rule_version < 3 THEN NULL ELSE coalesce(c.unacknowledged, 0) END",
        ),
        "checked_at": ("r.checked_ms", "c.sent_ms"),
        "last_answer_at": ("r.last_answer_ms", "w.answered_ms"),
        "discard_cause": ("r.discard_cause", "d.cause"),
        "discards": ("r.discards", "coalesce(d.times, 0)"),
    }
)
_DELAYED_COLUMNS = differing(
    {
        "deliver_at": ("r.deliver_ms", "s.due_ms"),
        "real_topic": ("r.real_topic", "s.real_topic"),
        "real_queue_id": ("r.real_queue_id", "s.real_queue_id"),
        "producer_group": (
            "r.producer_group",
            "CASE WHEN l.rule_version >= 4 THEN s.producer_group END",
        ),
    }
)


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
        "halves_are_pending_or_ended",
        "Halves = pending + ended, at every epoch: the halves that are recorded as pending are "
        "exactly those that had landed and not ended.",
        f"""
SELECT p.point AS epoch, p.queue_id, p.queue_offset,
  CASE
    WHEN a.point IS NOT NULL AND r.change IS DISTINCT FROM 'put'
      THEN 'neither ended nor recorded as pending'
    WHEN a.point IS NULL AND r.change = 'put' THEN 'recorded as pending, and ended or not landed'
  END AS problem
FROM points p
LEFT JOIN alive a ON p.point = a.point AND {same(HALF, "p", "a")}
ASOF LEFT JOIN (FROM pending WHERE change <> 'snapshot') r
  ON {same(HALF, "p", "r")} AND p.point >= r.epoch
""",
    ),
    Invariant(
        "pending_is_state",
        "What is recorded of a pending half is, at every epoch, what the other tables say.",
        f"""
WITH timed AS (
  SELECT a.*, CASE WHEN a.arm > 0 AND a.epoch < a.rearm_epochs[a.arm] THEN a.rearm_ats[a.arm]
    END AS rearm_ms
  FROM alive a
),
checked AS (
  SELECT a.point, a.queue_id, a.queue_offset, count(*) FILTER (c.acknowledged) AS times,
    max(c.sent_ms) AS sent_ms, arg_max(c.unacknowledged, c.epoch) AS unacknowledged
  FROM alive a JOIN attempts c ON {same(HALF, "a", "c")} AND a.arm = c.arm_then
    AND c.epoch <= a.point
  GROUP BY ALL
),
discarded AS (
  SELECT a.point, a.queue_id, a.queue_offset, count(*) AS times,
    max(o.cause) FILTER (arm_at(a.rearm_epochs, o.epoch) = a.arm) AS cause
  FROM alive a JOIN outcomes o ON {same(HALF, "a", "o")} AND o.outcome = 'DISCARDED'
    AND o.epoch <= a.point
  GROUP BY ALL
),
answered AS (
  SELECT a.point, a.queue_id, a.queue_offset, max(f.stored_ms) AS answered_ms
  FROM alive a JOIN fates f ON a.queue_id = f.queue_id AND a.unit_offset = f.unit_offset
    AND f.fate = 'answer' AND f.resolve_epoch <= a.point
  WHERE a.queue_offset = a.unit_offset
  GROUP BY ALL
)
SELECT a.point AS epoch, a.queue_id, a.queue_offset,
  {_PENDING_COLUMNS} || ' is not what the other tables say' AS problem
FROM timed a
ASOF JOIN (FROM pending WHERE change <> 'snapshot') r
  ON {same(HALF, "a", "r")} AND a.point >= r.epoch
LEFT JOIN plans p ON r.epoch = p.epoch
LEFT JOIN checked c ON a.point = c.point AND {same(HALF, "a", "c")}
LEFT JOIN discarded d ON a.point = d.point AND {same(HALF, "a", "d")}
LEFT JOIN answered w ON a.point = w.point AND {same(HALF, "a", "w")}
WHERE r.change = 'put'
UNION ALL
SELECT r.epoch, r.queue_id, r.queue_offset, {_needless(OF_HALVES)} FROM pending_changes r
""",
    ),
    # A naming waits from its operation's epoch until it is judged.
    Invariant(
        "waiting_is_state",
        "The operations recorded as waiting are, at every epoch, those that wait for their half or "
        "set, and no others.",
        f"""
WITH spans AS (
  SELECT f.*, p.at_ms AS landed_ms, coalesce(f.judged_epoch, {NEVER}) AS gone_epoch
  FROM fates f JOIN plans p ON f.op_epoch = p.epoch
),
several AS (FROM spans WHERE is_of_several AND is_whole),
decisions AS (
  SELECT queue_id, op_queue_offset, set_name, min(resolve_epoch) AS epoch
  FROM several
  WHERE set_name IS NOT NULL AND resolve_epoch IS NOT NULL AND expired_epoch IS NULL
    AND decides_once()
  GROUP BY ALL
),
points AS (
  SELECT DISTINCT * FROM (
    SELECT queue_id, op_queue_offset, position, epoch AS point FROM waiting
    WHERE change <> 'snapshot'
    UNION ALL
    SELECT queue_id, op_queue_offset, position, unnest([op_epoch, judged_epoch]) FROM spans
    WHERE gone_epoch > op_epoch
    UNION ALL
    SELECT s.queue_id, s.op_queue_offset, s.position, o.judged_epoch FROM spans s
    JOIN (SELECT DISTINCT queue_id, op_queue_offset, judged_epoch FROM several) o
      ON {same(_OPERATION, "s", "o")} AND o.judged_epoch < s.gone_epoch
    UNION ALL
    SELECT s.queue_id, s.op_queue_offset, s.position, d.epoch FROM spans s
    JOIN decisions d ON {same(_OPERATION, "s", "d")} AND d.epoch < s.gone_epoch
  ) WHERE point IS NOT NULL
),
-- The first position that waits for its half carries the sets for which its operation is decided.
carriers AS (
  SELECT p.point, p.queue_id, p.op_queue_offset, min(o.position) AS position
  FROM (SELECT DISTINCT point, queue_id, op_queue_offset FROM points) p
  JOIN several o ON {same(_OPERATION, "p", "o")} AND o.op_epoch <= p.point
    AND o.gone_epoch > p.point AND coalesce(o.resolve_epoch, {NEVER}) > p.point
  GROUP BY ALL
),
carried AS (
  SELECT c.*, list(DISTINCT d.set_name ORDER BY d.set_name) AS decided_sets
  FROM carriers c
  JOIN decisions d ON {same(_OPERATION, "c", "d")} AND d.epoch <= c.point
  GROUP BY ALL
),
wanted AS (
  SELECT p.point, s.*, c.decided_sets
  FROM points p
  JOIN spans s ON {same(NAMING, "p", "s")}
  LEFT JOIN carried c ON p.point = c.point AND {same(NAMING, "p", "c")}
  WHERE p.point >= s.op_epoch AND p.point < s.gone_epoch
)
SELECT p.point AS epoch, p.queue_id, p.op_queue_offset, p.position,
  CASE
    WHEN w.point IS NULL THEN CASE WHEN r.change = 'put' THEN 'it does not wait' END
    WHEN r.change IS DISTINCT FROM 'put' THEN 'it waits, and no row says so'
    ELSE {differing(_NAMING_COLUMNS)}
      || ' is not what the operation says'
  END AS problem
FROM points p
LEFT JOIN wanted w ON p.point = w.point AND {same(NAMING, "p", "w")}
ASOF LEFT JOIN (FROM waiting WHERE change <> 'snapshot') r
  ON {same(NAMING, "p", "r")} AND p.point >= r.epoch
UNION ALL
SELECT r.epoch, r.queue_id, r.op_queue_offset, r.position, {_needless(OF_NAMINGS)}
FROM waiting_changes r
""",
    ),
    Invariant(
        "delayed_is_state",
        "The messages recorded as delayed are, at every epoch, those that wait for their time, and "
        "no others.",
        f"""
WITH spans AS (
  SELECT d.*, coalesce(g.epoch, {NEVER}) AS gone_epoch
  FROM (FROM due WHERE is_later) d
  LEFT JOIN (SELECT source, queue_id, queue_offset, min(epoch) AS epoch FROM deliveries
             GROUP BY ALL) g ON {same(MESSAGE, "d", "g")}
),
points AS (
  SELECT DISTINCT * FROM (
    SELECT source, queue_id, queue_offset, epoch AS point FROM delayed WHERE change <> 'snapshot'
    UNION ALL
    SELECT source, queue_id, queue_offset, unnest([epoch, gone_epoch]) FROM spans
  ) WHERE point < {NEVER}
)
SELECT p.point AS epoch, p.source, p.queue_id, p.queue_offset,
  CASE
    WHEN s.source IS NULL THEN CASE WHEN r.change = 'put' THEN 'it does not wait' END
    WHEN r.change IS DISTINCT FROM 'put' THEN 'it waits, and no row says so'
    ELSE {_DELAYED_COLUMNS} || ' is not what its record says'
  END AS problem
FROM points p
JOIN plans l ON p.point = l.epoch
LEFT JOIN spans s ON {same(MESSAGE, "p", "s")} AND s.epoch <= p.point AND p.point < s.gone_epoch
ASOF LEFT JOIN (FROM delayed WHERE change <> 'snapshot') r
  ON {same(MESSAGE, "p", "r")} AND p.point >= r.epoch
UNION ALL
SELECT r.epoch, r.source, r.queue_id, r.queue_offset, {_needless(OF_MESSAGES)}
FROM delayed_changes r
""",
    ),
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
