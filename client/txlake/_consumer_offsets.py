"""How far each consumer group is, and which consumer may commit.

Every write is a compare-and-set (`txlake._compare_and_set`). Of a queue's rows the newest holds:
the one of the largest generation, and of these the latest commit. A write has a row for each queue
that changes; an owner without changes proves with one row of one of its queues that it lives.

If the table was deleted, each running consumer puts its own rows back; a group without a running
consumer has lost its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from txlake._compare_and_set import CompareAndSetTable

SCHEMA = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("generation", pa.int64()),
        ("owner", pa.string()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("session_timeout_ms", pa.int64()),
    ]
)

Key = tuple[str, str, int]
_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Commit:
    """One row: where a group is in a queue. `queue_offset` None: it has read nothing yet.

    `session_timeout_ms`: how long the owner holds its queues after its latest commit of any queue;
    None in rows of an SDK before lake format 5.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int | None
    generation: int
    owner: str  # empty when its owner has closed
    committed_at: datetime
    session_timeout_ms: int | None = None

    @property
    def key(self) -> Key:
        """Returns the group and queue that the row is about."""
        return self.consumer_group, self.topic, self.queue_id

    def is_newer_than(self, other: Commit | None) -> bool:
        """Returns whether this row replaces the other."""
        return other is None or (
            (self.generation, self.committed_at) > (other.generation, other.committed_at)
        )


class OwnerSessions:
    """Until when the owners of queues hold them: any row of an owner proves that it lives.

    Input: the newest rows of all queues; `session_timeout_ms`: of an owner that does not say its
    own.
    """

    def __init__(self, newest: Iterable[Commit], session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._lives_at: dict[tuple[str, str], datetime] = {}  # by group and owner

        for row in newest:
            owner = (row.consumer_group, row.owner)
            self._lives_at[owner] = max(row.committed_at, self._lives_at.get(owner, _NEVER))

    def held_until(self, row: Commit) -> datetime | None:
        """Returns when a queue is free if its owner does not commit again; None without an owner.

        Input: the queue's newest row.
        """
        if not row.owner:
            return None

        session_timeout_ms = row.session_timeout_ms
        if session_timeout_ms is None:
            session_timeout_ms = self._session_timeout_ms

        lives_at = self._lives_at.get((row.consumer_group, row.owner), row.committed_at)
        return lives_at + timedelta(milliseconds=session_timeout_ms)


class ConsumerOffsets(CompareAndSetTable[Key, Commit]):
    """The table `consumer_offsets` of a lake."""

    row_type = Commit
    schema = SCHEMA
    after_loss = (
        "running consumers put their rows back; a group without one begins as a new group does"
    )
