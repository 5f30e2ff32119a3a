"""The target of each operator's command, read once more from its text.

Table `commanded`: the rows of `admin`, with `kind` (half, schedule, undeliverable, topic, config,
lost) and what the target names: `named_queue` and `named_offset`, or `topic` with `queue_count` or
`config_value`, or `lost_kind` with `named_queue`, `named_offset` and `lost_last`. All are null
where the target cannot be read, or is of a kind that the command does not have.

Source: docs/protocol/rules.md "Operator commands", "Targets".
"""

from __future__ import annotations

from txlake.protocol import ACCEPT_LOSS, ALTER_TOPIC, CANCEL, CREATE_TOPIC, RESEND, RESUME

_RECORD = "^(half|schedule):([0-9]{1,9})-([0-9]{1,18})$"
_UNDELIVERABLE = "^undeliverable:([0-9]{1,18})$"
_TOPIC = "^topic:([A-Za-z0-9._-]{1,127}):([0-9]{1,5})$"
_CONFIG = r"^config:([A-Za-z0-9._-]{1,127}):retention\.(ms|bytes)=(-1|[0-9]{1,18})$"
_LOST = "^lost:(half|op|schedule|admin):([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})$"

FRAMES = f"""
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
