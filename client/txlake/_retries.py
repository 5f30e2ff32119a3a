"""Messages that a group's listener has refused: the lake's table `consumer_retries`.

A row says of one message how often it was refused, why, and when it comes again. It is written
before the group's offset passes the message, so a message that is refused is never lost: it comes
from its queue, or from its row. Of a message's rows the newest holds: the one of the queue's
largest generation, and of these the latest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa

from txlake._assignment import Queue
from txlake._compare_and_set import CompareAndSetTable

TABLE: Final = "consumer_retries"
WAITING, DEAD, DONE, DROPPED = "waiting", "dead", "done", "dropped"
_ENDED: Final = (DONE, DROPPED)  # a message that is refused after that begins anew

_INSTANT = pa.timestamp("us", tz="UTC")
ATTEMPTS = pa.list_(pa.struct([("attempted_at", _INSTANT), ("reason", pa.string())]))
SCHEMA = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("state", pa.string()),
        ("retries", pa.int32()),
        ("due_at", _INSTANT),
        ("attempts", ATTEMPTS),
        ("generation", pa.int64()),
        ("committed_at", _INSTANT),
        ("actor", pa.string()),
        ("reason", pa.string()),
    ]
)
_REASON_MAX = 500  # characters
_ATTEMPTS_MAX = 100  # of a message that operators have resumed again and again: the latest

Key = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Retry:
    """One row. `retries`: how often the message was refused since it came, or was resumed.

    `actor`, `reason`: who dropped the message, and why.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    state: str
    retries: int
    due_at: datetime
    attempts: list[dict[str, Any]]
    generation: int
    committed_at: datetime
    actor: str | None = None
    reason: str | None = None

    @property
    def key(self) -> Key:
        """Returns the group and the message that the row is about."""
        return self.consumer_group, self.topic, self.queue_id, self.queue_offset

    @property
    def queue(self) -> Queue:
        """Returns the queue of the message."""
        return self.topic, self.queue_id

    def is_newer_than(self, other: Retry | None) -> bool:
        """Returns whether this row replaces the other."""
        return other is None or (
            (self.generation, self.committed_at) > (other.generation, other.committed_at)
        )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a message that was refused comes again. Units: milliseconds.

    `delays_ms`: after the first refusal, the second ...; the last one counts for all later ones.
    `retries_max`: how often it comes again; refused once more, it is dead.
    """

    delays_ms: tuple[int, ...]
    retries_max: int

    def refused(self, row: Retry, reason: str, at: datetime) -> Retry:
        """Returns the row of a message after one more refusal. Input: its row before it."""
        count = row.retries + 1
        attempt = {"attempted_at": at, "reason": reason[:_REASON_MAX]}
        delay_ms = self.delays_ms[min(count, len(self.delays_ms)) - 1]

        return replace(
            row,
            state=DEAD if count > self.retries_max else WAITING,
            retries=count,
            due_at=at + timedelta(milliseconds=delay_ms),
            attempts=[*row.attempts, attempt][-_ATTEMPTS_MAX:],
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call of the listener with a message; `reason` None: the message is done.

    `retries`: how often it was refused before.
    """

    queue: Queue
    queue_offset: int
    retries: int
    generation: int
    reason: str | None
    at: datetime


class ConsumerRetries(CompareAndSetTable[Key, Retry]):
    """The table `consumer_retries` of a lake."""

    row_type = Retry
    schema = SCHEMA
    after_loss = "messages that were refused and waited do not come again"

    def is_kept(self, row: Retry) -> bool:
        """Returns whether the message waits or is dead, or it is to be seen who dropped it."""
        return row.state != DONE


@dataclass(slots=True)
class GroupRetries:
    """One group's rows: those that wait, by message, and the next of them that is due."""

    table: ConsumerRetries
    group: str
    _rows: dict[Key, Retry] = field(default_factory=dict)
    _due: list[tuple[datetime, Key]] = field(default_factory=list)  # a heap; some are outdated
    _passed_over: list[tuple[datetime, Key]] = field(default_factory=list)
    _waiting: dict[Queue, dict[int, int]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Reads what has changed: of 100,000 messages that wait a settle changes a few."""
        newest = self.table.newest()
        changed = self.table.take_changes()
        if changed is None:
            self._take_all(newest)
            return

        for row in changed.values():
            self._take(row)
        if changed:
            for entry in self._passed_over:
                heapq.heappush(self._due, entry)
            self._passed_over = []

    def _take_all(self, newest: Mapping[Key, Retry]) -> None:
        """Takes all rows anew."""
        self._rows = {
            key: row
            for key, row in newest.items()
            if key[0] == self.group and row.state not in _ENDED
        }  # fmt: skip
        waiting = [row for row in self._rows.values() if row.state == WAITING]

        self._due = [(row.due_at, row.key) for row in waiting]
        heapq.heapify(self._due)
        self._passed_over = []
        self._waiting = {}
        for row in waiting:
            self._waiting.setdefault(row.queue, {})[row.queue_offset] = row.retries

    def _take(self, row: Retry) -> None:
        """Takes a row that is new, in place of the one that its message had."""
        if row.consumer_group != self.group:
            return

        self._waiting.get(row.queue, {}).pop(row.queue_offset, None)
        if row.state in _ENDED:
            self._rows.pop(row.key, None)
            return

        self._rows[row.key] = row
        if row.state == WAITING:
            heapq.heappush(self._due, (row.due_at, row.key))
            self._waiting.setdefault(row.queue, {})[row.queue_offset] = row.retries

    def row(self, queue: Queue, offset: int) -> Retry | None:
        """Returns the row of a message that waits or is dead."""
        return self._rows.get((self.group, *queue, offset))

    def waiting_offsets(self, queue: Queue) -> dict[int, int]:
        """Returns how often each message of a queue that waits was refused, by its offset."""
        return self._waiting.get(queue, {})

    def due(self, is_wanted: Callable[[Retry], bool], rows_max: int) -> list[Retry]:
        """Returns rows whose time has come, the longest due first.

        A row that is not wanted now is looked at again when the table has changed, or when
        `look_again` is called.
        """
        now = datetime.now(timezone.utc)
        rows: list[Retry] = []

        while self._due and self._due[0][0] <= now and len(rows) < rows_max:
            due_at, key = heapq.heappop(self._due)
            row = self._rows.get(key)
            if row is None or row.state != WAITING or row.due_at != due_at:
                continue  # it has ended since, or comes at another time
            if is_wanted(row):
                rows.append(row)
            else:
                self._passed_over.append((due_at, key))

        return rows

    def look_again(self) -> None:
        """Looks at all rows again, for queues that this consumer has just taken."""
        newest = self.table.newest()
        self.table.take_changes()
        self._take_all(newest)

    def write(self, attempts: Sequence[Attempt], policy: RetryPolicy) -> None:
        """Writes what has become of messages."""

        def decide(newest: Mapping[Key, Retry], now: datetime) -> list[Retry]:
            rows = [self._after(attempt, newest, policy) for attempt in attempts]
            return [replace(row, committed_at=now) for row in rows if row is not None]

        if attempts:
            self.table.write(decide)
            self.refresh()

    def dying(self, attempts: Iterable[Attempt], policy: RetryPolicy) -> list[Retry]:
        """Returns the rows of messages that these attempts give up."""
        newest = self.table.newest()
        rows = [self._after(attempt, newest, policy) for attempt in attempts]
        return [row for row in rows if row is not None and row.state == DEAD]

    def _after(
        self, attempt: Attempt, newest: Mapping[Key, Retry], policy: RetryPolicy
    ) -> Retry | None:
        """Returns the row of a message after an attempt; None if the attempt changes nothing.

        A consumer that was replaced can hand out a message beside its successor: then the same
        attempt is made twice, and counts once.
        """
        key = (self.group, *attempt.queue, attempt.queue_offset)
        row = newest.get(key)
        generation = max(attempt.generation, 0 if row is None else row.generation)

        if row is not None and row.state in _ENDED:
            if row.committed_at >= attempt.at:
                return None
            row = None
        if attempt.reason is None:
            return None if row is None else replace(row, state=DONE)

        if row is None:
            row = Retry(*key, WAITING, attempt.retries, attempt.at, [], 0, attempt.at)
        elif row.retries > attempt.retries:
            return None

        return policy.refused(replace(row, generation=generation), attempt.reason, attempt.at)


def dropped(row: Retry, actor: str, reason: str, at: datetime) -> Retry:
    """Returns the row of a dead message that does not come again."""
    return replace(row, state=DROPPED, committed_at=at, actor=actor, reason=reason)


def forgotten(row: Retry, at: datetime) -> Retry:
    """Returns the row of a dropped message of which nothing is to be kept."""
    return replace(row, state=DONE, committed_at=at)


def resumed(row: Retry) -> Retry:
    """Returns the row of a dead message that is to come again at once, as often as a new one."""
    now = datetime.now(timezone.utc)
    return replace(row, state=WAITING, retries=0, due_at=now, committed_at=now)
