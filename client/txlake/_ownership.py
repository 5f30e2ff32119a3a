"""The queues that a consumer owns in its group: taken, held, committed, given back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from txlake._consumer_offsets import Commit, ConsumerOffsets, Key
from txlake.errors import GroupBusyError, StaleGenerationError

_LOOK_S = 0.1

Queue = tuple[str, int]


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
        self._session = timedelta(milliseconds=session_timeout_ms)
        self._generations: dict[Queue, int] = {}
        self._beaten_at = 0.0  # monotonic s

    def owns(self, topic: str, queue_id: int) -> bool:
        """Returns whether the queue was taken."""
        return (topic, queue_id) in self._generations

    def take(self, queues: Sequence[Queue], deadline: float) -> dict[Queue, int | None]:
        """Takes all these queues, or none of them. Output: the committed offsets.

        A queue is free when nobody ever had it, its owner has closed, or its owner has not
        committed for the session timeout. The new owner's generation is one more.
        Errors: GroupBusyError after the deadline (monotonic s).
        """

        def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
            rows = []
            for topic, queue_id in queues:
                free = Commit(self._group, topic, queue_id, None, 0, "", now)
                row = newest.get(free.key, free)
                if row.owner and now - row.committed_at <= self._session:
                    raise GroupBusyError(
                        f"group {self._group} topic {topic} queue {queue_id}: {row.owner} owns it "
                        f"until {row.committed_at + self._session:%Y-%m-%d %H:%M:%S.%f} UTC if it "
                        "does not commit again; share with `queues`, or wait"
                    )
                rows.append(
                    replace(row, generation=row.generation + 1, owner=self._owner, committed_at=now)
                )
            return rows

        while True:
            try:
                rows = self._offsets.write(decide)
                break
            except GroupBusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_S)
        self._beaten_at = time.monotonic()
        self._generations.update({(row.topic, row.queue_id): row.generation for row in rows})
        return {(row.topic, row.queue_id): row.queue_offset for row in rows}

    def commit(self, positions: Mapping[Queue, int]) -> None:
        """Stores positions, and that the owner lives; a queue without one stays where it is.

        Errors: StaleGenerationError.
        """
        self._offsets.write(lambda newest, now: [
            replace(row, queue_offset=positions.get(queue, row.queue_offset), committed_at=now)
            for queue, row in self._held(newest).items()
        ])  # fmt: skip
        self._beaten_at = time.monotonic()

    def beat_when_due(self) -> None:
        """Writes that the owner lives, three times a session. Errors: StaleGenerationError."""
        due_at = self._beaten_at + self._session.total_seconds() / 3
        if self._generations and time.monotonic() >= due_at:
            self.commit({})

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
