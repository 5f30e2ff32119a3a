"""The members of consumer groups that share queues: the lake's table `consumer_members`.

A member writes a row when it joins, three times a session while it lives, and when it leaves. It
says which topics the member reads. Who owns a queue is not said here but in `consumer_offsets`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from txlake._compare_and_set import CompareAndSetTable

TABLE = "consumer_members"
SCHEMA = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("member", pa.string()),
        ("topics", pa.list_(pa.string())),
        ("has_left", pa.bool_()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("session_timeout_ms", pa.int64()),
    ]
)
_FORGET_AFTER_SESSIONS = 20  # a member that comes back later joins anew

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Member:
    """One row: a member of a group, as it was at `committed_at`."""

    consumer_group: str
    member: str
    topics: list[str]
    has_left: bool
    committed_at: datetime
    session_timeout_ms: int

    @property
    def key(self) -> Key:
        """Returns the group and the member that the row is about."""
        return self.consumer_group, self.member

    def is_newer_than(self, other: Member | None) -> bool:
        """Returns whether this row replaces the other."""
        return other is None or self.committed_at > other.committed_at

    def lives_until(self) -> datetime:
        """Returns when its session is over if it writes no other row."""
        return self.committed_at + timedelta(milliseconds=self.session_timeout_ms)


class ConsumerMembers(CompareAndSetTable[Key, Member]):
    """The table `consumer_members` of a lake."""

    row_type = Member
    schema = SCHEMA
    after_loss = "running consumers join again"

    def is_kept(self, row: Member) -> bool:
        """Returns whether a member can still be alive."""
        span = timedelta(milliseconds=row.session_timeout_ms * _FORGET_AFTER_SESSIONS)
        return not row.has_left and datetime.now(timezone.utc) < row.committed_at + span


class Membership:
    """One consumer's place among the members of its group. Units: milliseconds."""

    def __init__(
        self, table: ConsumerMembers, group: str, member: str, topics: tuple[str, ...],
        session_timeout_ms: int,
    ) -> None:  # fmt: skip
        self._table = table
        self._row = Member(
            group, member, list(topics), False, datetime.now(timezone.utc), session_timeout_ms
        )
        self._beat_at: float | None = None  # of the latest write, monotonic s

    def heartbeat(self) -> None:
        """Writes that the member lives: at once when it joins, then three times a session."""
        interval_s = self._row.session_timeout_ms / 3_000
        if self._beat_at is None or time.monotonic() >= self._beat_at + interval_s:
            self._write(self._row)

    def leave(self) -> None:
        """Writes that the member is gone, if it has joined; its next heartbeat joins anew."""
        if self._beat_at is not None:
            self._write(replace(self._row, has_left=True))
            self._beat_at = None

    def topics_by_member(self) -> dict[str, frozenset[str]]:
        """Returns the members of the group whose session is not over, with their topics.

        The member itself is among them.
        """
        now = datetime.now(timezone.utc)
        alive = {
            row.member: frozenset(row.topics)
            for row in self._table.newest().values()
            if row.consumer_group == self._row.consumer_group
            and not row.has_left
            and now <= row.lives_until()
        }
        return {**alive, self._row.member: frozenset(self._row.topics)}

    def _write(self, row: Member) -> None:
        def decide(_newest: Mapping[Key, Member], now: datetime) -> list[Member]:
            return [replace(row, committed_at=now)]

        self._table.write(decide)
        self._beat_at = time.monotonic()
