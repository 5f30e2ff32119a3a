"""The queues that a consumer owns in its group: taken, held, committed, given back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from txlake._consumer_offsets import Commit, ConsumerOffsets, Key, held_until
from txlake.errors import GroupBusyError, StaleGenerationError

log = logging.getLogger("txlake.consumer")

_LOOK_S = 0.1

Queue = tuple[str, int]


class _HeldError(Exception):
    """A queue that its owner holds: until when, and by which commit of the owner."""

    def __init__(self, until: datetime, row: Commit, now: datetime) -> None:
        self.until, self.owner = until, row.owner
        self.remaining_s = (until - now).total_seconds()
        super().__init__(
            f"group {row.consumer_group} topic {row.topic} queue {row.queue_id}: {row.owner} owns "
            f"it until {until:%Y-%m-%d %H:%M:%S.%f} UTC, for {self.remaining_s:.1f} s more, if it "
            "does not commit again; share with `queues`, close that consumer, or wait with "
            "`wait_for_owner_ms`"
        )


class _OwnerWait:
    """A wait for the owners of queues. Input: its length, as of `Ownership.take`."""

    def __init__(self, wait_s: float | None) -> None:
        self._deadline = None if wait_s is None else time.monotonic() + wait_s
        self._ends: dict[str, datetime] = {}  # of an owner's session, by owner

    def is_over(self, held: _HeldError) -> bool:
        """Returns whether the wait is over though a queue is held."""
        if self._deadline is not None:
            return time.monotonic() >= self._deadline
        if held.owner not in self._ends:
            self._ends[held.owner] = held.until
            log.info("waiting until the queues are free: %s", held)
        # An owner that has committed meanwhile is alive.
        return held.until > self._ends[held.owner]


class Ownership:
    """A consumer's queues, each with the generation under which it was taken."""

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None,
        group: str,
        owner: str,
        session_timeout_ms: int,
        lake_id: str = "",
    ) -> None:
        self._offsets = ConsumerOffsets(uri, storage_options, lake_id)
        self._group = group
        self._owner = owner
        self._session_timeout_ms = session_timeout_ms
        self._generations: dict[Queue, int] = {}
        self._beaten_at = 0.0  # monotonic s

    def owns(self, topic: str, queue_id: int) -> bool:
        """Returns whether the queue was taken."""
        return (topic, queue_id) in self._generations

    def take(self, queues: Sequence[Queue], wait_s: float | None) -> dict[Queue, int | None]:
        """Takes all these queues, or none of them. Output: the committed offsets.

        A queue is free when nobody ever had it, its owner has closed, or its owner has not
        committed for the owner's session timeout. The new owner's generation is one more.
        Input: `wait_s`: how long to wait for owners; None: until their sessions end, unless one
        of them commits meanwhile.
        Errors: GroupBusyError.
        """
        wait = _OwnerWait(wait_s)
        while True:
            try:
                rows = self._offsets.write(lambda newest, now: self._taken(queues, newest, now))
                break
            except _HeldError as held:
                if wait.is_over(held):
                    raise GroupBusyError(str(held)) from None
                time.sleep(_LOOK_S)
        self._beaten_at = time.monotonic()
        self._generations.update({(row.topic, row.queue_id): row.generation for row in rows})
        return {(row.topic, row.queue_id): row.queue_offset for row in rows}

    def _taken(
        self, queues: Sequence[Queue], newest: Mapping[Key, Commit], now: datetime
    ) -> list[Commit]:
        """Returns the rows by which queues are taken. Errors: _HeldError."""
        rows = []
        held = []
        for topic, queue_id in queues:
            free = Commit(self._group, topic, queue_id, None, 0, "", now)
            row = newest.get(free.key, free)
            until = held_until(newest, row, self._session_timeout_ms)
            if until is not None and now <= until:
                held.append((until, row))
            rows.append(
                replace(
                    row,
                    generation=row.generation + 1,
                    owner=self._owner,
                    committed_at=now,
                    session_timeout_ms=self._session_timeout_ms,
                )
            )
        if held:
            raise _HeldError(*max(held, key=lambda hold: hold[0]), now)
        return rows

    def commit(self, positions: Mapping[Queue, int]) -> None:
        """Stores the positions that have changed; a queue without one stays where it is.

        Errors: StaleGenerationError.
        """

        def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
            return [
                replace(row, queue_offset=positions[queue], committed_at=now)
                for queue, row in self._held(newest).items()
                if positions.get(queue, row.queue_offset) != row.queue_offset
            ]

        if self._offsets.write(decide):
            self._beaten_at = time.monotonic()
        else:
            self.beat_when_due()

    def beat_when_due(self) -> None:
        """Writes that the owner lives, three times a session. Errors: StaleGenerationError."""
        due_at = self._beaten_at + self._session_timeout_ms / 3_000
        if self._generations and time.monotonic() >= due_at:
            self._offsets.write(self._beat)
            self._beaten_at = time.monotonic()

    def _beat(self, newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
        """Returns one row of one queue, which changes nothing but its instant."""
        held = self._held(newest)
        return [replace(held[min(held)], committed_at=now)]

    def release(self) -> None:
        """Gives back the queues that are still this consumer's."""

        def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
            return [
                replace(row, owner="", committed_at=now)
                for row in newest.values()
                if (row.consumer_group, row.owner) == (self._group, self._owner)
                and row.generation == self._generations.get((row.topic, row.queue_id))
            ]

        if self._generations:
            self._offsets.write(decide)
            self._generations.clear()

    def committed(self, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        """Returns the group's committed offsets."""
        newest = self._offsets.newest()
        rows = {queue: newest.get((self._group, *queue)) for queue in queues}
        return {queue: row.queue_offset if row else None for queue, row in rows.items()}

    def _held(self, newest: Mapping[Key, Commit]) -> dict[Queue, Commit]:
        """Returns the newest rows of this consumer's queues. Errors: StaleGenerationError."""
        held = {}
        for (topic, queue_id), generation in self._generations.items():
            row = newest.get((self._group, topic, queue_id))
            if row is None or (row.generation, row.owner) != (generation, self._owner):
                now_at = "nothing" if row is None else f"generation {row.generation}, {row.owner}"
                raise StaleGenerationError(
                    f"group {self._group} topic {topic} queue {queue_id}: generation {generation} "
                    f"of {self._owner} is over, the table has {now_at or 'nobody'}; "
                    "make a new consumer"
                )
            held[topic, queue_id] = row
        return held
