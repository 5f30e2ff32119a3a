"""Rebuild what the job holds in memory from the lake: the newest snapshot and what came after.

Only rows of epochs before the given one are read, so that an unfinished epoch is run again from
the same state as the first time.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DELAYED, HALVES, NAMINGS, NEXT_OFFSETS, TOPICS, State
from checker.sql import run
from storage.epochs import Progress
from storage.lake import Lake
from storage.rows import to_frame

_HALF_COLUMNS = [
    "queue_id", "queue_offset", "stored_at", "epoch", "producer_group", "transaction_id",
    "real_topic", "real_queue_id", "delay_level", "deliver_at", "immunity_ms", "tran_size",
    "tran_seq", "error",
]  # fmt: skip
_OP_COLUMNS = [
    "queue_id", "queue_offset", "stored_at", "epoch", "producer_group", "decision",
    "half_offsets", "transaction_ids", "from_check", "actor", "error",
]  # fmt: skip

# What an operation's end is recorded as (outcomes.cause), a late end aside.
CAUSE_SQL = """CASE WHEN actor IS NOT NULL THEN 'operator'
  WHEN from_check THEN 'check_answer' ELSE 'operation' END"""

_LIVE = """
WITH landed AS (
  SELECT queue_id, queue_offset, producer_group, transaction_id, tran_size, tran_seq, arm,
    stored_at, real_topic, real_queue_id, delay_level, deliver_at, immunity_ms, check_times,
    checked_at, last_answer_at, discard_cause, discards, $snapshot AS epoch
  FROM snapshot
  UNION ALL
  SELECT queue_id, queue_offset, producer_group, transaction_id, tran_size, tran_seq, 0,
    stored_at, real_topic, real_queue_id, delay_level, deliver_at, immunity_ms, 0,
    NULL, NULL, NULL, 0, epoch
  FROM halves WHERE error IS NULL
)
SELECT *, CASE WHEN tran_size > 1 THEN min(queue_offset) OVER
    (PARTITION BY queue_id, producer_group, transaction_id, tran_size)
  ELSE queue_offset END AS unit_offset
FROM landed l
ANTI JOIN (SELECT * FROM outcomes WHERE outcome <> 'DISCARDED') o
  ON l.queue_id = o.queue_id AND l.queue_offset = o.queue_offset
"""

# Re-arms of units: how often since the snapshot, and when last.
_REARMS = """
SELECT l.queue_id, l.unit_offset, count(*)::INTEGER AS rearms, max(c.epoch) AS epoch,
  max(e.epoch_at) AS epoch_at
FROM (SELECT regexp_extract(target, 'half:([0-9]+)-([0-9]+)', 1)::INTEGER AS queue_id,
        regexp_extract(target, 'half:([0-9]+)-([0-9]+)', 2)::BIGINT AS queue_offset, epoch
      FROM commands WHERE result = 'rearmed') c
JOIN live l ON c.queue_id = l.queue_id AND c.queue_offset = l.queue_offset
JOIN epochs e ON c.epoch = e.epoch
GROUP BY l.queue_id, l.unit_offset
"""

_HALVES = """
WITH units AS (
  SELECT l.queue_id, l.unit_offset, (max(l.arm) + coalesce(max(r.rearms), 0))::INTEGER AS arm,
    max(r.epoch) AS rearmed_epoch, max(r.epoch_at) AS rearmed_at
  FROM live l LEFT JOIN rearms r ON l.queue_id = r.queue_id AND l.unit_offset = r.unit_offset
  GROUP BY l.queue_id, l.unit_offset
),
asked AS (
  SELECT queue_id, queue_offset, arm, count(*) FILTER (acknowledged) AS times,
    max(sent_at) AS sent_at
  FROM checks GROUP BY queue_id, queue_offset, arm
),
given_up AS (
  SELECT queue_id, queue_offset, count(*) AS times, max(arm) AS arm,
    arg_max(cause, epoch) AS cause
  FROM outcomes WHERE outcome = 'DISCARDED' GROUP BY queue_id, queue_offset
)
SELECT l.queue_id, l.queue_offset, l.producer_group, l.transaction_id, l.tran_size, l.tran_seq,
  l.unit_offset, u.arm,
  CASE WHEN l.epoch < u.rearmed_epoch THEN u.rearmed_at ELSE l.stored_at END AS stored_at,
  l.real_topic, l.real_queue_id, l.delay_level, l.deliver_at, l.immunity_ms,
  (CASE WHEN u.rearmed_epoch IS NULL THEN l.check_times ELSE 0 END
    + coalesce(a.times, 0))::INTEGER AS check_times,
  coalesce(a.sent_at, CASE WHEN u.rearmed_epoch IS NULL THEN l.checked_at END) AS checked_at,
  CASE WHEN l.queue_offset = l.unit_offset THEN greatest(w.answered_at, l.last_answer_at) END
    AS last_answer_at,
  CASE WHEN g.arm = u.arm THEN g.cause WHEN u.rearmed_epoch IS NULL THEN l.discard_cause END
    AS discard_cause,
  (l.discards + coalesce(g.times, 0))::INTEGER AS discards
FROM live l
JOIN units u ON l.queue_id = u.queue_id AND l.unit_offset = u.unit_offset
LEFT JOIN asked a ON l.queue_id = a.queue_id AND l.queue_offset = a.queue_offset AND a.arm = u.arm
LEFT JOIN given_up g ON l.queue_id = g.queue_id AND l.queue_offset = g.queue_offset
LEFT JOIN answers w ON l.queue_id = w.queue_id AND l.unit_offset = w.unit_offset
ORDER BY l.queue_id, l.queue_offset
"""

_NAMINGS = f"""
SELECT n.queue_id, op_queue_offset, n.position, half_queue_offset, decision, producer_group,
  transaction_id, cause, stored_at, landed_at, op_epoch
FROM (
  SELECT queue_id, op_queue_offset, position, half_queue_offset, decision, producer_group,
    transaction_id, cause, stored_at, landed_at, $snapshot AS op_epoch
  FROM waiting
  UNION ALL
  SELECT queue_id, queue_offset, (i - 1)::INTEGER, half_offsets[i], decision, producer_group,
    transaction_ids[i], {CAUSE_SQL}, stored_at, epoch_at, o.epoch
  FROM (SELECT *, unnest(generate_series(1, len(half_offsets))) AS i
        FROM operations WHERE error IS NULL) o
  JOIN epochs e ON o.epoch = e.epoch
) n
ANTI JOIN conflicts c ON n.queue_id = c.queue_id AND n.op_queue_offset = c.op_queue_offset
  AND n.half_queue_offset = c.half_queue_offset
"""

# A duplicate of a live set's half stands for the set.
_NAMED_UNITS = """
SELECT queue_id, queue_offset, unit_offset, epoch FROM live
UNION ALL
SELECT h.queue_id, h.queue_offset, any_value(l.unit_offset), any_value(h.epoch)
FROM halves h
JOIN live l ON h.queue_id = l.queue_id AND h.producer_group = l.producer_group
  AND h.transaction_id = l.transaction_id AND h.tran_size = l.tran_size
WHERE h.tran_size > 1 AND h.error IS NULL
  AND NOT EXISTS (SELECT 1 FROM live s
                  WHERE s.queue_id = h.queue_id AND s.queue_offset = h.queue_offset)
GROUP BY h.queue_id, h.queue_offset
"""

_ANSWERS = """
SELECT n.queue_id, u.unit_offset, max(n.stored_at) AS answered_at
FROM namings n
JOIN named_units u ON n.queue_id = u.queue_id AND n.half_queue_offset = u.queue_offset
WHERE n.decision = 'UNKNOWN' AND greatest(n.op_epoch, u.epoch) > $snapshot
GROUP BY n.queue_id, u.unit_offset
"""

_WAITING = """
SELECT queue_id, op_queue_offset, position, half_queue_offset, decision, producer_group,
  transaction_id, cause, stored_at, landed_at
FROM (
  SELECT n.*, u.unit_offset, e.half_end
  FROM namings n
  LEFT JOIN named_units u ON n.queue_id = u.queue_id AND n.half_queue_offset = u.queue_offset
  LEFT JOIN half_ends e ON n.queue_id = e.queue_id
)
WHERE half_queue_offset >= coalesce(half_end, 0)
  OR (unit_offset IS NOT NULL AND decision <> 'UNKNOWN')
ORDER BY queue_id, op_queue_offset, position
"""


def restore(lake: Lake, progress: Progress, half_topic: str) -> State:
    """Rebuild the state after the last committed epoch.

    Output: the same State (row for row, order aside) that the job held when it committed.
    """
    last = progress.last
    if last is None:
        return State()
    snapshot = progress.snapshot_epoch or 0
    since = (pc.field("epoch") > snapshot) & (pc.field("epoch") <= last.epoch)
    halves = _with_ms(lake.read("half", _HALF_COLUMNS, since))
    outcomes = lake.read(
        "outcomes", ["queue_id", "queue_offset", "arm", "outcome", "cause", "epoch"], since
    )
    epochs = _with_ms(
        lake.read("epochs", ["epoch", "epoch_at"], since & (pc.field("state") == "planned"))
    )
    at_snapshot = pc.field("epoch") == snapshot
    values = {"snapshot": snapshot}
    live = run(
        _LIVE,
        values,
        snapshot=_with_ms(lake.read("pending", where=at_snapshot)),
        halves=halves,
        outcomes=outcomes,
    )
    namings = run(
        _NAMINGS,
        values,
        waiting=_with_ms(lake.read("waiting", where=at_snapshot)),
        operations=_with_ms(lake.read("op", _OP_COLUMNS, since)),
        epochs=epochs,
        conflicts=lake.read(
            "conflicts", ["queue_id", "op_queue_offset", "half_queue_offset"], since
        ),
    )
    named_units = run(_NAMED_UNITS, live=live, halves=halves)
    commands = lake.read("admin", ["target", "result", "epoch"], since)
    ends = last.queue_ends(half_topic)
    half_ends = pa.table(
        {"queue_id": pa.array(ends.keys(), pa.int32()), "half_end": pa.array(ends.values())},
        schema=pa.schema([("queue_id", pa.int32()), ("half_end", pa.int64())]),
    )
    return State(
        halves=run(
            _HALVES,
            live=live,
            rearms=run(_REARMS, live=live, commands=commands, epochs=epochs),
            checks=_with_ms(lake.read("checks", where=since)),
            outcomes=outcomes,
            answers=run(_ANSWERS, values, namings=namings, named_units=named_units),
        ).cast(HALVES),
        waiting=run(_WAITING, namings=namings, named_units=named_units, half_ends=half_ends).cast(
            NAMINGS
        ),
        delayed=_waiting_for_time(lake, last.epoch),
        topics=topics_before(lake, last.epoch + 1),
        next_offsets=pa.Table.from_pylist(
            [
                {"topic": topic, "queue_id": queue_id, "next_offset": offset}
                for (topic, queue_id), offset in sorted(progress.next_offsets.items())
            ],
            schema=NEXT_OFFSETS,
        ),
    )


def _with_ms(rows: pa.Table) -> pa.Table:
    """Give rows with their instants in ms."""
    schema = pa.schema(
        [
            pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type)
            for f in rows.schema
        ]
    )
    return to_frame(rows, schema)


def _waiting_for_time(lake: Lake, last_epoch: int) -> pa.Table:
    before = pc.field("epoch") <= last_epoch
    columns = ["source", "queue_id", "queue_offset"]
    return run(
        """
        SELECT d.source, d.queue_id, d.queue_offset, d.deliver_at, d.real_topic, d.real_queue_id
        FROM delayed d ANTI JOIN done x ON d.source = x.source AND d.queue_id = x.queue_id
          AND d.queue_offset = x.queue_offset
        ORDER BY d.deliver_at
        """,
        delayed=_with_ms(lake.read("delayed", where=before)),
        done=lake.read("deliveries", columns, before),
    ).cast(DELAYED)


def topics_before(lake: Lake, epoch: int) -> pa.Table:
    """Give the catalog as it was before an epoch: each topic once, with its largest count."""
    return run(
        """
        SELECT topic, min(table_id) AS table_id, max(queue_count) AS queue_count
        FROM catalog GROUP BY topic ORDER BY table_id
        """,
        catalog=lake.read("catalog", where=pc.field("epoch") < epoch),
    ).cast(TOPICS)
