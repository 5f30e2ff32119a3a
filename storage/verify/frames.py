"""The frames of the invariants: the committed rows of each table, and what follows from them.

Views with the tables' own names hold rows up to the last committed epoch (`scope.py`). Made of
them, in order:

plans           an epoch's `epoch_at` and parameters
ranges          what an epoch landed of a Kafka partition (`kind`: the table)
known           `known_at` and `halves_known_at` of each queue
commanded       operators' commands and what the target of each names; null where it cannot be read,
                or is of a kind that the command does not have
half_once       landed halves, each place once; `op_once`, `schedule_once` likewise
rearms          re-arms by unit, counted
landed          every landed half, with its unit and its end
halves          those of them that can be read
units           halves that end together: the first one, when the unit was complete, how it ended
unit_discards   when a unit was discarded, once for each arm
records         halves and schedule records
places          where outcomes and deliveries say that a message is

`operations.py` adds the fate of each naming, the other modules the frames that they need.
"""

from __future__ import annotations

from duckdb import DuckDBPyConnection

from storage.verify.scope import make_views
from txlake.protocol import (
    ACCEPT_LOSS,
    ALTER_TOPIC,
    CANCEL,
    CHECK_MAX_TOPIC,
    CREATE_TOPIC,
    RESEND,
    RESUME,
    UNDELIVERABLE_TOPIC,
)

# The texts of targets, read once more. Source: docs/protocol/rules.md "Operator commands".
_RECORD = "^(half|schedule):([0-9]{1,9})-([0-9]{1,18})$"
_UNDELIVERABLE = "^undeliverable:([0-9]{1,18})$"
_TOPIC = "^topic:([A-Za-z0-9._-]{1,127}):([0-9]{1,5})$"
_CONFIG = r"^config:([A-Za-z0-9._-]{1,127}):retention\.(ms|bytes)=(-1|[0-9]{1,18})$"
_LOST = "^lost:(half|op|schedule|admin):([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})$"

# Each place once: a table if some place stands twice, else a view.
_ONCE = "CREATE VIEW {table}_once AS SELECT * FROM {table}"
_ONCE_OF_SEVERAL = """
CREATE TABLE {table}_once AS SELECT DISTINCT ON (queue_id, queue_offset) * FROM {table}
"""
_TWICE = """
SELECT count(*) FROM (
  SELECT 1 FROM {table} GROUP BY queue_id, queue_offset HAVING count(*) > 1 LIMIT 1)
"""

# `kind`: half, schedule, undeliverable, topic, config or lost. What the target names is in
# `named_queue` and `named_offset`, or in `topic` with `queue_count` or `config_value`, or in
# `lost_kind` with `named_queue`, `named_offset` and `lost_last`.
_COMMANDED = f"""
CREATE TABLE commanded AS
WITH matched AS (
  SELECT *, regexp_extract(target, '{_RECORD}', ['kind', 'queue', 'place']) AS record,
    regexp_extract(target, '{_UNDELIVERABLE}', 1) AS undeliverable,
    regexp_extract(target, '{_TOPIC}', ['topic', 'count']) AS made,
    regexp_extract(target, '{_CONFIG}', ['topic', 'name', 'value']) AS altered,
    regexp_extract(target, '{_LOST}', ['kind', 'queue', 'first', 'last']) AS lost
  FROM admin
),
read AS (
  SELECT *,
    CASE
      WHEN record.kind = 'half' AND command IN ('{RESUME}', '{RESEND}', '{CANCEL}') THEN 'half'
      WHEN record.kind = 'schedule' AND command = '{CANCEL}' THEN 'schedule'
      WHEN undeliverable <> '' AND command = '{RESUME}' THEN 'undeliverable'
      WHEN made.topic <> '' AND command = '{CREATE_TOPIC}' THEN 'topic'
      WHEN altered.topic <> '' AND command = '{ALTER_TOPIC}' THEN 'config'
      WHEN lost.kind <> '' AND command = '{ACCEPT_LOSS}'
        AND lost.first::BIGINT <= lost.last::BIGINT THEN 'lost'
    END AS kind
  FROM matched
)
SELECT epoch, queue_offset AS admin_offset, command, target, result, error, kind,
  CASE WHEN kind IN ('half', 'schedule') THEN record.queue::INTEGER
    WHEN kind = 'lost' THEN lost.queue::INTEGER END AS named_queue,
  CASE WHEN kind IN ('half', 'schedule') THEN record.place::BIGINT
    WHEN kind = 'undeliverable' THEN undeliverable::BIGINT
    WHEN kind = 'lost' THEN lost.first::BIGINT END AS named_offset,
  CASE kind WHEN 'topic' THEN made.topic WHEN 'config' THEN altered.topic END AS topic,
  CASE WHEN kind = 'topic' THEN made.count::INTEGER END AS queue_count,
  CASE WHEN kind = 'config' THEN altered.value::BIGINT END AS config_value,
  CASE WHEN kind = 'lost' THEN lost.kind END AS lost_kind,
  CASE WHEN kind = 'lost' THEN lost.last::BIGINT END AS lost_last
FROM read
"""

_FRAMES = f"""
CREATE TABLE plans AS
SELECT DISTINCT ON (e.epoch) e.epoch, e.at_ms, e.rule_version, s.* EXCLUDE (id)
FROM all_epochs e JOIN parameter_sets s ON e.parameters_id = s.id
WHERE e.state = 'planned' AND e.epoch <= newest() AND e.epoch >= base();

CREATE VIEW commits AS
SELECT epoch, at_ms, next_offsets, counts, tables FROM all_epochs
WHERE state = 'committed' AND epoch <= newest() AND epoch >= base();

CREATE TABLE ranges AS
SELECT r.epoch, p.at_ms, r.range.topic AS topic, r.range.partition AS queue_id,
  r.range.from_offset AS from_offset, r.range.to_offset AS to_offset,
  r.range.end_offset AS end_offset, r.asked_ms,
  r.range.asked_end_offset AS asked_end_offset,
  CASE r.range.topic WHEN p.half_topic THEN 'half' WHEN p.op_topic THEN 'op'
    WHEN p.schedule_topic THEN 'schedule' WHEN p.admin_topic THEN 'admin' END AS kind
FROM (SELECT DISTINCT epoch, asked_ms, unnest(ranges) AS range FROM all_epochs
      WHERE state = 'planned' AND epoch <= newest()) r
JOIN plans p ON r.epoch = p.epoch;

CREATE TABLE known AS
SELECT * FROM (
  SELECT DISTINCT ON (epoch, what, entry.key) epoch, what, entry.key AS queue_id,
    epoch_ms(entry.value) AS known_ms
  FROM (
    SELECT epoch, 'op' AS what, unnest(map_entries(known_at)) AS entry FROM all_epochs
    WHERE state = 'planned' AND epoch <= newest() AND epoch >= base()
    UNION ALL
    SELECT epoch, 'half', unnest(map_entries(halves_known_at)) FROM all_epochs
    WHERE state = 'planned' AND epoch <= newest() AND epoch >= base()));

-- A set is the halves that share queue, group, transaction id and TRAN_SIZE.
CREATE TABLE members AS
SELECT queue_id, queue_offset,
  min(queue_offset) OVER (PARTITION BY queue_id, producer_group, transaction_id, tran_size)
    AS unit_offset,
  row_number() OVER (PARTITION BY queue_id, producer_group, transaction_id, tran_size, tran_seq
                     ORDER BY queue_offset) > 1 AS is_duplicate
FROM half_once WHERE error IS NULL AND makes_set(tran_size);

-- Every landed half with its unit and its end; an unreadable one has neither.
CREATE TABLE landed AS
SELECT h.* EXCLUDE (body_print, header_print),
  makes_set(h.tran_size) AS is_in_set,
  coalesce(m.unit_offset, h.queue_offset) AS unit_offset,
  coalesce(m.is_duplicate, false) AS is_duplicate,
  -- Where its age begins: stored, or known of its queue in the epoch before, whichever is later.
  CASE WHEN p.ages_from_known_at THEN greatest(h.stored_ms, k.known_ms) ELSE h.stored_ms END
    AS age_from_ms,
  f.epoch AS end_epoch, f.outcome, f.cause, f.op_queue_offset
FROM half_once h
LEFT JOIN members m ON h.queue_id = m.queue_id AND h.queue_offset = m.queue_offset
LEFT JOIN plans p ON h.epoch = p.epoch
LEFT JOIN known k ON k.what = 'op' AND h.queue_id = k.queue_id AND k.epoch = h.epoch - 1
LEFT JOIN (SELECT DISTINCT ON (queue_id, queue_offset) * FROM
             (FROM outcomes WHERE outcome <> 'DISCARDED' ORDER BY epoch)) f
  ON h.queue_id = f.queue_id AND h.queue_offset = f.queue_offset;

CREATE VIEW halves AS SELECT 'half' AS source, * EXCLUDE (error) FROM landed WHERE error IS NULL;

CREATE TABLE rearms AS
SELECT h.queue_id, h.unit_offset, a.epoch, a.admin_offset, p.at_ms,
  row_number() OVER (PARTITION BY h.queue_id, h.unit_offset ORDER BY a.epoch, a.admin_offset)
    AS arm
FROM commanded a
JOIN halves h ON a.kind = 'half' AND a.named_queue = h.queue_id AND a.named_offset = h.queue_offset
JOIN plans p ON a.epoch = p.epoch
WHERE a.result IN ('rearmed', 'resent');

-- `rearm_epochs`: the arm at an epoch is how many of these are at or before it.
CREATE TABLE units AS
WITH together AS (
  SELECT queue_id, queue_offset AS unit_offset, 1 AS size, stored_ms, age_from_ms, immunity_ms,
    epoch,
    epoch AS complete_epoch, end_epoch, outcome, cause, op_queue_offset
  FROM halves WHERE NOT is_in_set
  UNION ALL
  SELECT queue_id, unit_offset, any_value(tran_size),
    min(stored_ms) FILTER (queue_offset = unit_offset),
    min(age_from_ms) FILTER (queue_offset = unit_offset),
    min(immunity_ms) FILTER (queue_offset = unit_offset), min(epoch),
    CASE WHEN count(*) FILTER (NOT is_duplicate) = any_value(tran_size)
      THEN max(epoch) FILTER (NOT is_duplicate) END,
    min(end_epoch) FILTER (NOT is_duplicate),
    arg_min(outcome, (end_epoch, queue_offset)) FILTER (NOT is_duplicate),
    arg_min(cause, (end_epoch, queue_offset)) FILTER (NOT is_duplicate),
    arg_min(op_queue_offset, (end_epoch, queue_offset)) FILTER (NOT is_duplicate)
  FROM halves WHERE is_in_set GROUP BY queue_id, unit_offset
)
SELECT t.*, coalesce(r.epochs, []) AS rearm_epochs, coalesce(r.ats, []) AS rearm_ats
FROM together t
LEFT JOIN (SELECT queue_id, unit_offset, list(epoch ORDER BY arm) AS epochs,
             list(at_ms ORDER BY arm) AS ats FROM rearms GROUP BY queue_id, unit_offset) r
  ON t.queue_id = r.queue_id AND t.unit_offset = r.unit_offset;

-- The arm of a unit at an epoch.
CREATE MACRO arm_at(rearm_epochs, at_epoch) AS
  len(list_filter(rearm_epochs, lambda e: e <= at_epoch))::INTEGER;

CREATE TABLE unit_discards AS
SELECT u.queue_id, u.unit_offset, arm_at(u.rearm_epochs, o.epoch) AS arm,
  min(o.epoch) AS epoch, arg_min(o.cause, o.epoch) AS cause
FROM outcomes o
JOIN halves h ON o.queue_id = h.queue_id AND o.queue_offset = h.queue_offset
JOIN units u ON h.queue_id = u.queue_id AND h.unit_offset = u.unit_offset
WHERE o.outcome = 'DISCARDED' AND h.queue_offset = h.unit_offset
GROUP BY ALL;

CREATE VIEW records AS
SELECT 'half' AS source, * FROM half_once
UNION ALL
SELECT 'schedule', * FROM schedule_once;

-- Where outcomes and deliveries say that a message is.
CREATE TABLE places AS
SELECT 'half' AS source, queue_id, queue_offset, real_topic AS topic, real_queue_id,
  real_queue_offset, epoch, 'COMMITTED' AS action, NULL::BIGINT AS admin_offset
FROM outcomes WHERE outcome = 'COMMITTED' AND real_queue_offset IS NOT NULL
UNION ALL
SELECT source, queue_id, queue_offset,
  CASE action WHEN 'DELIVERED' THEN real_topic ELSE '{UNDELIVERABLE_TOPIC}' END, real_queue_id,
  real_queue_offset, epoch, action, admin_offset
FROM deliveries WHERE action <> 'CANCELLED';

CREATE MACRO is_own(topic) AS topic IN ('{CHECK_MAX_TOPIC}', '{UNDELIVERABLE_TOPIC}')
"""


def make_frames(connection: DuckDBPyConnection, last: int, has_few_rows: bool) -> int:
    """Makes all frames, of rows up to the last committed epoch. Output: the epoch of its floor."""
    base = make_views(connection, last, has_few_rows)

    for table in ("half", "op", "schedule"):
        (duplicate_count,) = connection.execute(_TWICE.format(table=table)).fetchall()[0]
        connection.execute((_ONCE_OF_SEVERAL if duplicate_count else _ONCE).format(table=table))

    connection.execute(_COMMANDED)
    connection.execute(_FRAMES)
    return base
