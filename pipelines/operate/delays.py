"""The delayed messages that wait for their time, the next first, at the newest committed epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.epoch.parameters import plan_parameters
from pipelines.epoch.recorded_state import read_state
from pipelines.explain.rows import Row, latest_committed, to_dicts
from storage.lake.aging import snapshot_before
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.wire.record_kinds import HALF, SCHEDULE
from txlake.protocol import RecordTarget

COLUMNS: Final = (
    "target",
    "deliver_at",
    "level",
    "real_topic",
    "producer_group",
    "transaction_id",
    "keys",
)
_MESSAGE = [
    "queue_id",
    "queue_offset",
    "delay_level",
    "delay_ms",
    "deliver_at",
    "producer_group",
    "transaction_id",
    "keys",
]

# A level above the last counts as the last; 0 is no level, and DELIVER_AT and a span go before it
# (docs/protocol/rules.md "Delay").
_LEVEL = """
CASE WHEN m.delay_level > 0 AND m.deliver_at IS NULL AND m.delay_ms IS NULL
  THEN least(m.delay_level, $levels) END
"""
_WAITING = f"""
SELECT d.source, d.queue_id, d.queue_offset, d.deliver_at,
  {_LEVEL} AS level,
  d.real_topic, m.producer_group, m.transaction_id, m.keys
FROM delayed d
LEFT JOIN messages m
  ON d.source = m.source AND d.queue_id = m.queue_id AND d.queue_offset = m.queue_offset
WHERE ($topic IS NULL OR d.real_topic = $topic)
  AND ($group IS NULL OR m.producer_group = $group)
  AND ($level IS NULL
    OR coalesce({_LEVEL}, 0) = $level)
ORDER BY d.deliver_at, d.source, d.queue_id, d.queue_offset
"""

_LEVELS = """
SELECT level, count(*) AS waiting, min(deliver_at) AS next_at
FROM waiting GROUP BY level ORDER BY level NULLS LAST
"""


@dataclass(frozen=True)
class DelayedMessages:
    """Delayed messages (COLUMNS, the next first), and their number at each level. Units: ms.

    A message without a level waits for its DELIVER_AT, or for its span.
    """

    messages: list[Row]
    levels: list[Row]
    level_spans_ms: tuple[int, ...]
    count: int


def read_waiting(
    lake: Lake,
    topic: str | None = None,
    group: str | None = None,
    level: int | None = None,
    limit: int | None = None,
) -> DelayedMessages:
    """Returns the messages that wait for their time; `level` 0: those without a level."""
    epoch, epochs = latest_committed(lake)
    parameters = plan_parameters(epochs.get(epoch))
    delayed = read_state(lake, "delayed", epoch, snapshot_before(lake, epoch))

    values = {
        "levels": len(parameters.delay_levels_ms),
        "topic": topic,
        "group": group,
        "level": level,
    }
    records = pa.concat_tables([_messages(lake, source, delayed) for source in (HALF, SCHEDULE)])
    waiting = run(_WAITING, values, delayed=delayed, messages=records)
    levels = to_dicts(run(_LEVELS, waiting=waiting))

    messages = []
    for row in to_dicts(waiting.slice(0, limit)):
        target = RecordTarget(row["source"], row["queue_id"], row["queue_offset"])
        messages.append({"target": str(target), **{name: row[name] for name in COLUMNS[1:]}})

    return DelayedMessages(messages, levels, parameters.delay_levels_ms, waiting.num_rows)


def _messages(lake: Lake, source: str, delayed: pa.Table) -> pa.Table:
    """Returns the records of the waiting messages, those of one source.

    Between the oldest of them and the newest there can be millions of others.
    """
    offsets = delayed.filter(pc.equal(delayed["source"], source))["queue_offset"]
    bounds: Bounds = {"queue_offset": pc.unique(offsets).to_pylist()}

    records = read_rows(lake, source, _MESSAGE, bounds)
    return records.append_column("source", pa.array([source] * records.num_rows, pa.string()))
