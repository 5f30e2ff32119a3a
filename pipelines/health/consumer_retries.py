"""Messages that listeners of consumer groups have refused: those that wait, and those given up."""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.explain.rows import Row, to_dicts
from storage.errors import MissingTableError
from storage.lake.lake import Lake
from txlake._dead_letters import TABLE as DEAD_LETTERS
from txlake._retries import TABLE as RETRIES

DEAD_COLUMNS: Final = (
    "consumer_group",
    "topic",
    "queue_id",
    "queue_offset",
    "attempts",
    "since",
    "keys",
    "reason",
)
RETRY_COLUMNS: Final = (
    "consumer_group",
    "topic",
    "queue_id",
    "queue_offset",
    "attempts",
    "due_at",
    "reason",
)

# Of a message's rows the newest holds: `txlake._retries.Retry.is_newer_than`.
_NEWEST = """
SELECT consumer_group, topic, queue_id, queue_offset, state, due_at, len(attempts) AS attempts,
  attempts[-1].attempted_at AS since, attempts[-1].reason AS reason
FROM (
  SELECT * FROM retries
  QUALIFY row_number() OVER (PARTITION BY consumer_group, topic, queue_id, queue_offset
    ORDER BY generation DESC, committed_at DESC) = 1
)
ORDER BY since, consumer_group, topic, queue_id, queue_offset
"""


def read_refused(lake: Lake, state: str, group: str | None, topic: str | None) -> list[Row]:
    """Returns the messages in a state that groups have refused, the longest refused first; ms.

    Output: DEAD_COLUMNS and `due_at`; `keys` is null where the message does not stand among the
    dead letters. Input: the group and the topic to choose, if any.
    """
    try:
        retries = lake.read(RETRIES)
    except MissingTableError:  # nothing was ever refused
        return []

    rows = [
        row
        for row in to_dicts(run(_NEWEST, retries=retries))
        if row["state"] == state
        and group in (None, row["consumer_group"])
        and topic in (None, row["topic"])
    ]
    keys = _read_keys(lake) if rows else {}
    return [{**row, "keys": keys.get(_place(row))} for row in rows]


def _read_keys(lake: Lake) -> dict[tuple[str, str, int, int], str | None]:
    try:
        columns = ["consumer_group", "topic", "queue_id", "queue_offset", "keys"]
        letters = lake.read(DEAD_LETTERS, columns, pc.scalar(True))
    except MissingTableError:
        return {}
    return {_place(row): row["keys"] for row in letters.to_pylist()}


def _place(row: Row) -> tuple[str, str, int, int]:
    return row["consumer_group"], row["topic"], row["queue_id"], row["queue_offset"]
