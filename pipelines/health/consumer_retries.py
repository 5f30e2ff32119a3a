"""Messages that listeners of consumer groups have refused: those that wait, are dead or dropped."""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.explain.message_readers import NEWEST
from pipelines.explain.rows import Row, to_dicts
from storage.errors import MissingTableError
from storage.lake.lake import Lake
from txlake._dead_letters import TABLE as DEAD_LETTERS
from txlake._retries import DEAD, DROPPED, WAITING
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
DROPPED_COLUMNS: Final = (
    "consumer_group",
    "topic",
    "queue_id",
    "queue_offset",
    "attempts",
    "dropped_at",
    "actor",
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
COUNT_COLUMNS: Final = ("consumer_group", "dead", "dead_oldest_at", "retrying", "due_at")

_REFUSED = f"""{NEWEST}
SELECT consumer_group, topic, queue_id, queue_offset, state, due_at, len(attempts) AS attempts,
  attempts[-1].attempted_at AS since, attempts[-1].reason AS reason
FROM newest
ORDER BY since, consumer_group, topic, queue_id, queue_offset
"""
_DROPPED = f"""{NEWEST}
SELECT consumer_group, topic, queue_id, queue_offset, len(attempts) AS attempts,
  committed_at AS dropped_at, actor, reason
FROM newest
WHERE state = $dropped
ORDER BY dropped_at DESC, consumer_group, topic, queue_id, queue_offset
"""
_PLACE: Final = ("consumer_group", "topic", "queue_id", "queue_offset")
_COUNTED: Final = (
    *_PLACE,
    "state",
    "due_at",
    "generation",
    "committed_at",
)
_COUNTS = f"""{NEWEST}
SELECT consumer_group,
  count(*) FILTER (WHERE state = $dead) AS dead,
  min(committed_at) FILTER (WHERE state = $dead) AS dead_oldest_at,
  count(*) FILTER (WHERE state = $waiting) AS retrying,
  min(due_at) FILTER (WHERE state = $waiting) AS due_at
FROM newest
WHERE state IN ($dead, $waiting)
GROUP BY consumer_group ORDER BY consumer_group
"""

_OLD = f"""{NEWEST}
SELECT consumer_group, topic, queue_id, queue_offset, state
FROM newest
WHERE state IN ($dead, $dropped) AND epoch_ms(committed_at) < $before
ORDER BY consumer_group, topic, queue_id, queue_offset
"""
_LETTER_AGES = f"""{NEWEST}, letter AS (
  SELECT consumer_group, topic, queue_id, queue_offset,
    min(dead_at) AS first_at, max(dead_at) AS last_at
  FROM letters GROUP BY ALL
)
SELECT l.consumer_group, min(l.first_at) AS oldest_at,
  min(l.last_at) FILTER (WHERE n.state IN ($dead, $waiting)) AS held_at
FROM letter l LEFT JOIN newest n USING (consumer_group, topic, queue_id, queue_offset)
GROUP BY l.consumer_group ORDER BY l.consumer_group
"""


def count_refused(lake: Lake) -> list[Row]:
    """Returns how many messages each consumer group has refused that are dead, or come again; ms.

    Output: COUNT_COLUMNS, a row for each group that has some. `dead_oldest_at`: since when the
    first of the dead ones is dead; `due_at`: when the next of the others comes again. It reads
    neither the messages nor the reasons.
    """
    try:
        retries = lake.read(RETRIES, _COUNTED)
    except MissingTableError:  # nothing was ever refused
        return []
    return to_dicts(run(_COUNTS, {"dead": DEAD, "waiting": WAITING}, retries=retries))


def read_refused(lake: Lake, state: str, group: str | None, topic: str | None) -> list[Row]:
    """Returns the messages in a state that groups have refused, the longest refused first; ms.

    Output: DEAD_COLUMNS and `due_at`; `keys` is null where the message does not stand among the
    dead letters. Input: the group and the topic to choose, if any.
    """
    chosen = _chosen(group, topic)
    try:
        retries = lake.read(RETRIES, None, chosen)
    except MissingTableError:  # nothing was ever refused
        return []

    newest = to_dicts(run(_REFUSED, retries=retries))
    rows = [row for row in newest if row["state"] == state]
    keys = _read_keys(lake, chosen) if rows else {}
    return [{**row, "keys": keys.get(_place(row))} for row in rows]


def find_old(lake: Lake, before: int) -> list[Row]:
    """Returns the messages that have been dead, or dropped, since before an instant; ms.

    Output: the group and the message, and its `state`.
    """
    try:
        retries = lake.read(RETRIES, _COUNTED)
    except MissingTableError:  # nothing was ever refused
        return []
    return to_dicts(
        run(_OLD, {"dead": DEAD, "dropped": DROPPED, "before": before}, retries=retries)
    )


def read_letter_ages(lake: Lake) -> list[Row]:
    """Returns how old the dead letters of each group are; ms.

    Output: `oldest_at`: when the first of them died; `held_at`: when the first of those died that
    are needed, since their messages are dead or come again; null if there are none.
    """
    try:
        retries = lake.read(RETRIES, _COUNTED)
        letters = lake.read(DEAD_LETTERS, [*_PLACE, "dead_at"])
    except MissingTableError:  # nothing was ever given up
        return []
    states = {"dead": DEAD, "waiting": WAITING}
    return to_dicts(run(_LETTER_AGES, states, retries=retries, letters=letters))


def read_dropped(lake: Lake, group: str | None, topic: str | None) -> list[Row]:
    """Returns the messages that were dropped, the latest first; ms. Output: DROPPED_COLUMNS.

    Input: the group and the topic to choose, if any.
    """
    try:
        retries = lake.read(RETRIES, None, _chosen(group, topic))
    except MissingTableError:  # nothing was ever refused
        return []
    if "actor" not in retries.column_names:  # of an SDK that dropped nothing
        return []
    return to_dicts(run(_DROPPED, {"dropped": DROPPED}, retries=retries))


def _chosen(group: str | None, topic: str | None) -> pc.Expression:
    is_chosen = pc.scalar(True)
    if group is not None:
        is_chosen &= pc.field("consumer_group") == group
    if topic is not None:
        is_chosen &= pc.field("topic") == topic
    return is_chosen


def _read_keys(lake: Lake, chosen: pc.Expression) -> dict[tuple[str, str, int, int], str | None]:
    try:
        letters = lake.read(DEAD_LETTERS, [*_PLACE, "keys"], chosen)
    except MissingTableError:
        return {}
    return {_place(row): row["keys"] for row in letters.to_pylist()}


def _place(row: Row) -> tuple[str, str, int, int]:
    return row["consumer_group"], row["topic"], row["queue_id"], row["queue_offset"]
