"""The consumer groups of a delivered message's topic: who has read it, who has refused it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.explain.rows import Row, to_dicts
from pipelines.output import instant
from storage.errors import MissingTableError
from storage.lake.lake import Lake
from txlake._counted import counted
from txlake._retries import DEAD, DROPPED, TABLE, WAITING

_COLUMNS: Final = (
    "consumer_group",
    "topic",
    "queue_id",
    "queue_offset",
    "state",
    "due_at",
    "attempts",
    "generation",
    "committed_at",
)

# Of a message's rows the newest holds: `txlake._retries.Retry.is_newer_than`.
NEWEST: Final = """
WITH newest AS (
  SELECT * FROM retries
  QUALIFY row_number() OVER (PARTITION BY consumer_group, topic, queue_id, queue_offset
    ORDER BY generation DESC, committed_at DESC) = 1
)
"""
_REFUSALS = f"""{NEWEST}
SELECT consumer_group, topic, queue_id, queue_offset, state, due_at, len(attempts) AS attempts
FROM newest
WHERE state IN ($waiting, $dead, $dropped)
ORDER BY consumer_group, topic, queue_id, queue_offset
"""

Message = tuple[str, int, int]  # topic, queue, offset


@dataclass(frozen=True)
class Reader:
    """A consumer group of a delivered message's topic.

    `has_read`: it has committed an offset after the message, and its listener has not refused it.
    `queue_offset`: the next offset to read in the message's queue, as the group has committed it;
    None if it has read nothing of it. `refusal`: `waiting` if its listener has refused the message
    and it comes again, at `due_at` (ms); `dead` if it was given up; `dropped` by an operator; else
    None. `attempts`: how often it was refused.
    """

    consumer_group: str
    has_read: bool
    queue_offset: int | None
    refusal: str | None = None
    attempts: int = 0
    due_at: int | None = None

    @property
    def refusal_text(self) -> str:
        """Returns what became of the message that the group's listener has refused."""
        times = "once" if self.attempts == 1 else counted(self.attempts, "time")
        if self.due_at is not None:
            return f"refused {times}, comes again at {instant(self.due_at)}"
        if self.refusal == DEAD:
            return f"refused {times}, given up"
        return f"refused {times}, dropped by an operator"


def read_refusals(lake: Lake, messages: Collection[Message]) -> dict[Message, list[Row]]:
    """Returns what became of delivered messages that listeners of groups have refused; ms.

    Output: by message, a row for each group: the group, the message, `state` (waiting, dead or
    dropped), `due_at`, `attempts`.
    """
    if not messages:
        return {}

    topics, queue_ids, offsets = map(set, zip(*messages, strict=True))
    is_near = (
        pc.field("topic").isin(list(topics))
        & pc.field("queue_id").isin(list(queue_ids))
        & pc.field("queue_offset").isin(list(offsets))
    )
    try:
        retries = lake.read(TABLE, _COLUMNS, is_near)
    except MissingTableError:  # nothing was ever refused
        return {}

    states = {"waiting": WAITING, "dead": DEAD, "dropped": DROPPED}
    chosen = set(messages)
    refusals: dict[Message, list[Row]] = {}
    for row in to_dicts(run(_REFUSALS, states, retries=retries)):
        message = row["topic"], row["queue_id"], row["queue_offset"]
        if message in chosen:
            refusals.setdefault(message, []).append(row)
    return refusals


def readers_of(
    message: Message, positions: Iterable[Row], refusals: Mapping[Message, Sequence[Row]]
) -> tuple[Reader, ...]:
    """Returns the consumer groups of a delivered message's topic, by their names.

    Input: `positions`: rows with a group, a topic, a queue and its committed `queue_offset`;
    `refusals`: of `read_refusals`.
    """
    topic, queue_id, queue_offset = message
    of_topic = [row for row in positions if row["topic"] == topic]
    committed = {
        row["consumer_group"]: row["queue_offset"]
        for row in of_topic
        if row["queue_id"] == queue_id
    }
    refused = {row["consumer_group"]: row for row in refusals.get(message, ())}

    readers = []
    for group in sorted({row["consumer_group"] for row in of_topic} | refused.keys()):
        position = committed.get(group)
        is_past = position is not None and position > queue_offset
        row = refused.get(group)
        if row is None:
            readers.append(Reader(group, is_past, position))
        else:
            due_at = row["due_at"] if row["state"] == WAITING else None
            readers.append(Reader(group, False, position, row["state"], row["attempts"], due_at))
    return tuple(readers)
