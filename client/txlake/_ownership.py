"""The queues that a consumer owns in its group: taken, held, committed, given back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Final

from txlake._consumer_offsets import Commit, ConsumerOffsets, Key, OwnerSessions
from txlake.errors import GroupBusyError, StaleGenerationError

log = logging.getLogger("txlake.consumer")

_PAUSE_S = 0.1

Queue = tuple[str, int]
_NONE: Final[Mapping[Queue, int]] = {}


class _HeldError(Exception):
    """A queue that its owner holds: until when, and by which commit of the owner."""

    def __init__(self, until: datetime, row: Commit, now: datetime) -> None:
        self.until = until
        self.owner = row.owner
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
    """A consumer's queues, each with the row by which it holds it: its generation and offset.

    If the table was deleted meanwhile, the next write, or look at the owners, puts these rows into
    the new one. The other owners do so within their sessions: until then the table does not say
    which queues are free.
    Input: `drops_lost`: a queue that another consumer took over is dropped, and `take_lost` names
    it; without it such a queue is a StaleGenerationError.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None,
        group: str,
        owner: str,
        session_timeout_ms: int,
        lake_id: str = "",
        *,
        drops_lost: bool = False,
    ) -> None:
        self._drops_lost = drops_lost
        self._lost: list[Queue] = []
        self._offsets = ConsumerOffsets(uri, storage_options, lake_id)
        self._group = group
        self.owner = owner
        self._session_timeout_ms = session_timeout_ms
        self._rows: dict[Queue, Commit] = {}
        self._beat_at = 0.0  # of the latest write, monotonic s
        self._complete_at = 0.0  # until then others put rows back, monotonic s

    def owns(self, topic: str, queue_id: int) -> bool:
        """Returns whether the queue was taken."""
        return (topic, queue_id) in self._rows

    def take(
        self, queues: Sequence[Queue], wait_s: float | None, begins: Mapping[Queue, int] = _NONE
    ) -> dict[Queue, int | None]:
        """Takes all these queues, or none of them. Output: the committed offsets.

        A queue is free when nobody ever had it, its owner has closed, or its owner has not
        committed for the owner's session timeout. The new owner's generation is one more.
        Input: `wait_s`: how long to wait for owners; None: until their sessions end, unless one
        of them commits meanwhile; `begins`: offsets to commit where there is none.
        Errors: GroupBusyError.
        """
        wait = _OwnerWait(wait_s)

        while True:
            try:
                rows = self._offsets.write(
                    lambda newest, now: self._rows_of(queues, begins, newest, now)
                )
                break
            except _HeldError as held:
                if wait.is_over(held):
                    raise GroupBusyError(str(held)) from None
                time.sleep(_PAUSE_S)

        self._keep(rows)
        return {(row.topic, row.queue_id): row.queue_offset for row in rows}

    def _rows_of(
        self,
        queues: Sequence[Queue],
        begins: Mapping[Queue, int],
        newest: Mapping[Key, Commit],
        now: datetime,
    ) -> list[Commit]:
        """Returns the rows by which queues are taken. Errors: _HeldError."""
        sessions = self._sessions(newest)
        rows = []
        held = []

        for queue in queues:
            before = self._row_of(queue, newest, now)
            until = self._held_until(before, sessions)
            if until is not None and now <= until:
                held.append((until, before))
            rows.append(self._taken(before, begins.get(queue), now))

        if held:
            raise _HeldError(*max(held, key=lambda hold: hold[0]), now)
        return rows

    def _sessions(self, newest: Mapping[Key, Commit]) -> OwnerSessions:
        rows = (row for row in newest.values() if row.consumer_group == self._group)
        return OwnerSessions(rows, self._session_timeout_ms)

    def _held_until(self, row: Commit, sessions: OwnerSessions) -> datetime | None:
        """Returns until when another consumer holds a queue, if one does.

        A row of this one that it does not know of is of a write whose answer was lost.
        """
        return None if row.owner == self.owner else sessions.held_until(row)

    def _row_of(self, queue: Queue, newest: Mapping[Key, Commit], now: datetime) -> Commit:
        """Returns the newest row of a queue; one without an owner if it has none."""
        free = Commit(self._group, *queue, None, 0, "", now)
        return newest.get(free.key, free)

    def _taken(self, before: Commit, begin: int | None, now: datetime) -> Commit:
        """Returns the row by which this consumer takes a queue. Input: `begin`: as of `take`."""
        return replace(
            before,
            queue_offset=begin if before.queue_offset is None else before.queue_offset,
            generation=before.generation + 1,
            owner=self.owner,
            committed_at=now,
            session_timeout_ms=self._session_timeout_ms,
        )

    def take_free(
        self, queues: Iterable[Queue], begins: Mapping[Queue, int] = _NONE
    ) -> dict[Queue, int | None]:
        """Takes those of the queues that nobody else holds. Output: their committed offsets.

        Input: `begins`: as of `take`.
        """
        wanted = sorted(queues)

        def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
            sessions = self._sessions(newest)
            rows = [self._row_of(queue, newest, now) for queue in wanted]
            untils = [self._held_until(row, sessions) for row in rows]

            return [
                self._taken(row, begins.get((row.topic, row.queue_id)), now)
                for row, until in zip(rows, untils, strict=True)
                if until is None or now > until
            ]

        rows = self._offsets.write(decide) if wanted else []
        if rows:
            self._keep(rows)
        return {(row.topic, row.queue_id): row.queue_offset for row in rows}

    def owners(self) -> dict[Queue, str]:
        """Returns the owner of each queue of the group that somebody holds now.

        Rows of its own that the table has lost are put back before.
        """
        newest = self._offsets.newest()
        if any(row.key not in newest for row in self._rows.values()):
            self._keep(self._offsets.write(self._heartbeat_rows))
            newest = self._offsets.newest()

        self._note_deleted()
        now = datetime.now(timezone.utc)
        sessions = self._sessions(newest)
        owners = {}

        for row in newest.values():
            if row.consumer_group == self._group:
                until = sessions.held_until(row)
                if until is not None and now <= until:
                    owners[row.topic, row.queue_id] = row.owner

        return owners

    def _note_deleted(self) -> None:
        """Notes until when others can put back their rows of a table that was deleted."""
        deleted = self._offsets.take_deleted()
        if deleted:
            sessions_ms = [self._session_timeout_ms] + [
                row.session_timeout_ms or 0
                for row in deleted.values()
                if row.consumer_group == self._group and row.owner
            ]
            self._complete_at = time.monotonic() + max(sessions_ms) / 1_000

    def is_complete(self) -> bool:
        """Returns whether a queue that has no owner by `owners` is free.

        Where the table was deleted it is not: until the sessions of that time are over, its owner
        can put its row back.
        """
        return time.monotonic() > self._complete_at

    def take_lost(self) -> list[Queue]:
        """Returns the queues that were lost to other consumers since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def commit(self, positions: Mapping[Queue, int]) -> None:
        """Stores the positions that have changed; a queue without one stays where it is.

        Errors: StaleGenerationError.
        """

        def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
            held = self._newest_rows(newest)
            moved = {
                queue: replace(row, queue_offset=positions.get(queue, row.queue_offset))
                for queue, row in held.items()
            }

            return [
                replace(row, committed_at=now)
                for queue, row in moved.items()
                if row != held[queue] or row.key not in newest
            ]

        rows = self._offsets.write(decide)
        if rows:
            self._keep(rows)
        else:
            self.heartbeat()

    def generations(self) -> dict[Queue, int]:
        """Returns the generation by which each queue is held."""
        return {queue: row.generation for queue, row in self._rows.items()}

    def heartbeat(self) -> None:
        """Writes that the owner lives, three times a session. Errors: StaleGenerationError."""
        due_at = self._beat_at + self._session_timeout_ms / 3_000
        if self._rows and time.monotonic() >= due_at:
            self._keep(self._offsets.write(self._heartbeat_rows))

    def _heartbeat_rows(self, newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
        """Returns the rows that the table lost, else one, which changes nothing but its instant."""
        held = self._newest_rows(newest)
        if not held:
            return []

        lost = [row for row in held.values() if row.key not in newest]
        return [replace(row, committed_at=now) for row in lost or [held[min(held)]]]

    def _keep(self, rows: Iterable[Commit]) -> None:
        """Keeps the rows that were written: this consumer holds its queues by them."""
        self._beat_at = time.monotonic()
        self._rows.update({(row.topic, row.queue_id): row for row in rows})

    def release(self, queues: Iterable[Queue] | None = None) -> None:
        """Gives back queues that are still this consumer's; None: all.

        Meanwhile a signal handler, or another thread, can do the same.
        """
        names = self._rows.keys() if queues is None else set(queues)
        returned = [row for queue, row in list(self._rows.items()) if queue in names]

        def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
            return [
                replace(newest.get(row.key, row), owner="", committed_at=now)
                for row in returned
                if self._holds(row, newest)
            ]

        if returned:
            self._offsets.write(decide)
            for row in returned:
                self._rows.pop((row.topic, row.queue_id), None)

    def committed(self, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        """Returns the group's committed offsets."""
        newest = self._offsets.newest()
        rows = {queue: newest.get((self._group, *queue)) for queue in queues}
        return {queue: row.queue_offset if row else None for queue, row in rows.items()}

    def _newest_rows(self, newest: Mapping[Key, Commit]) -> dict[Queue, Commit]:
        """Returns the newest rows of this consumer's queues. Errors: StaleGenerationError."""
        held = {}

        for queue, row in list(self._rows.items()):
            current = newest.get(row.key, row)
            if not self._holds(row, newest):
                if self._drops_lost:
                    del self._rows[queue]
                    self._lost.append(queue)
                    continue

                raise StaleGenerationError(
                    f"group {row.consumer_group} topic {row.topic} queue {row.queue_id}: "
                    f"generation {row.generation} of {self.owner} is over, the table has "
                    f"generation {current.generation} of {current.owner or 'nobody'}; make a new "
                    "consumer"
                )
            held[queue] = current

        return held

    @staticmethod
    def _holds(row: Commit, newest: Mapping[Key, Commit]) -> bool:
        """Returns whether a row still holds its queue, also if the table has lost the row."""
        current = newest.get(row.key, row)
        return (current.generation, current.owner) == (row.generation, row.owner)
