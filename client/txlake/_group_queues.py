"""The queues that a consumer reads for its group: taken, read ahead, committed, handed over.

A consumer with `queues` takes these and keeps them. Without `queues` it is one member of several:
it takes its share of all queues, and hands over what is no longer its share, when all that was
taken from such a queue is committed, and after a session at the latest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from txlake._assignment import Queue, assign
from txlake._counted import counted
from txlake._lake import Lake, Topic
from txlake._members import Membership
from txlake._ownership import Ownership
from txlake._poll_backoff import LOOK_S, PollBackoff
from txlake._queues import QueueBuffers
from txlake.errors import OffsetOutOfRangeError, StaleGenerationError, UnknownTopicError

log = logging.getLogger("txlake.consumer")

_LOOK_S = 0.3  # between two looks at the other members; on a store each is some requests
_STORE_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer is to read. `queues`: by topic; empty for a share of all."""

    topics: tuple[str, ...]
    queues: Mapping[str, Sequence[int]]
    offset_reset: str


class GroupQueues:
    """A consumer's queues. Input: `membership`: None for a consumer that does not share."""

    def __init__(
        self,
        lake: Lake,
        subscription: Subscription,
        ownership: Ownership,
        membership: Membership | None,
        buffers: QueueBuffers,
        backoff: PollBackoff,
        session_timeout_s: float,
    ) -> None:
        self.buffers = buffers
        self.ownership = ownership

        self._lake = lake
        self._subscription = subscription
        self._membership = membership
        self._backoff = backoff
        self._session_timeout_s = session_timeout_s
        self._look_s = min(
            _STORE_LOOK_S if backoff.is_store else _LOOK_S,
            session_timeout_s / 5,
        )

        self._at_start: Mapping[str, Topic] = {}
        self._checked: set[str] = set()
        self._settled: dict[Queue, int] = {}  # the position that was taken or committed
        self._leaving: dict[Queue, float] = {}  # until when a queue waits for a commit
        self._lost: list[Queue] = []  # with messages that were taken and not committed
        self._topics: Mapping[str, Topic] = {}
        self._look_at = 0.0
        self._full_look_at = 0.0

    def start(self, wait_s: float | None) -> None:
        """Takes the first queues. Input: as of `Ownership.take`, where the queues are named."""
        topics = self._at_start = self._lake.topics()
        if self._membership is None:
            self._take_named(wait_s)
            return

        self._check(
            [
                (name, queue_id)
                for name in self._subscription.topics
                if name in topics
                for queue_id in range(topics[name].queue_count)
            ],
            topics,
        )
        self._share()

    def keep(self) -> None:
        """Shows that the consumer lives, and lets go of queues that another one has taken over.

        Errors: StaleGenerationError if the consumer does not share.
        """
        self.ownership.heartbeat()
        self._drop_lost()

    def look(self, busy: Collection[Queue] = ()) -> None:
        """Reads on, if it is time to: new messages, new queues, other members.

        Input: `busy`: queues of which messages are in hand that came before their positions, as
        retries do: they are not handed over yet.
        """
        self.keep()

        is_due = self._backoff.is_due(has_rows=self.buffers.has_rows())
        if is_due and (self._is_full_look_due() or self.buffers.may_have_news()):
            knows_all = self._checked >= set(self._subscription.topics)
            if self._backoff.is_for_topics(knows_all=knows_all):
                if self._membership is None:
                    self._take_named(0.0)
                elif self._lake.topics() is not self._topics:
                    self._look_at = 0.0

            self._backoff.note_read(is_new=self.buffers.fill())

        if self._membership is not None and time.monotonic() >= self._look_at:
            self._share(busy)

    @property
    def is_in_store(self) -> bool:
        """Returns whether each look is a request."""
        return self._backoff.is_store

    def pause_s(self) -> float:
        """Returns how long to wait until it is time to read."""
        return self._backoff.remaining_s()

    def _is_full_look_due(self) -> bool:
        """Returns whether to look for more than news of the tables that are read here."""
        now = time.monotonic()
        if now < self._full_look_at:
            return False

        self._full_look_at = now + (0.0 if self._backoff.is_store else _LOOK_S)
        return True

    def wait(self, deadline: float) -> None:
        """Waits until it is time to look again, at most until a deadline (monotonic s).

        On a disk that is when a table that is read here has a new version, or when the other
        members are looked at.
        """
        if self._backoff.is_store:
            self._backoff.wait(deadline)
            return

        until = min(deadline, time.monotonic() + self._look_s)
        remaining_s = until - time.monotonic()
        while remaining_s > 0:
            time.sleep(min(LOOK_S, remaining_s))
            if self.buffers.may_have_news():
                return
            remaining_s = until - time.monotonic()

    def take(self, max_records: int) -> list[tuple[str, pa.Table]]:
        """Takes rows, each queue's in order, but of no queue that is to be handed over."""
        return self.buffers.take(max_records, without=self._leaving)

    def commit(self, positions: Mapping[Queue, int] | None = None) -> None:
        """Stores positions, by default those up to which rows were taken; then hands over.

        Errors: StaleGenerationError; a consumer that shares keeps its other queues, whose
        positions are stored.
        """
        if positions is None:
            positions = self.buffers.positions()

        self.commit_kept(positions)
        lost = self.take_lost()
        if lost:
            names = ", ".join(f"{topic} {queue_id}" for topic, queue_id in sorted(lost))
            raise StaleGenerationError(
                f"another consumer has taken over {names}: what was read of it is not committed, "
                "and comes to that one; the other queues are committed, and this consumer goes on"
            )

    def commit_kept(self, positions: Mapping[Queue, int], busy: Collection[Queue] = ()) -> None:
        """Stores the positions of queues that are still this consumer's; then hands over.

        Input: `busy`: as of `look`.
        """
        self.ownership.commit(positions)
        self._drop_lost()
        for queue in self._settled:
            self._settled[queue] = positions.get(queue, self._settled[queue])
        self.buffers.note_committed(positions)
        self._hand_over(busy)

    def seek(self, queue: Queue, offset: int) -> None:
        """Goes on at another offset of a queue."""
        self.buffers.seek(*queue, offset)

    def leaving(self) -> list[Queue]:
        """Returns the queues that are to be handed over when they are committed."""
        return list(self._leaving)

    def take_lost(self) -> list[Queue]:
        """Returns the queues that were lost with messages that were not committed."""
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Leaves the group, and gives all queues back.

        Where a step fails, all goes on as before; another call does what is left to do.
        """
        if self._membership is not None:
            self._membership.leave()  # first: nobody counts on this member for free queues
        self.ownership.release()

    def _drop_lost(self) -> None:
        lost = self.ownership.take_lost()
        if not lost:
            return

        for queue in lost:
            log.warning(
                "topic %s queue %d: another consumer has taken it over; this one was silent for "
                "longer than its session",
                *queue,
            )
            if not self._is_settled(queue):
                self._lost.append(queue)
        self._forget(lost)

    def _is_settled(self, queue: Queue) -> bool:
        """Returns whether all that was taken or sought of a queue is committed."""
        return self.buffers.due(queue) in (None, self._settled[queue])

    def _forget(self, queues: Sequence[Queue]) -> None:
        self.buffers.remove(queues)
        for queue in queues:
            self._settled.pop(queue, None)
            self._leaving.pop(queue, None)

    def _share(self, busy: Collection[Queue] = ()) -> None:
        """Takes what is free of this member's share, and notes what is no longer in it."""
        assert self._membership is not None
        self._look_at = time.monotonic() + self._look_s
        self._membership.heartbeat()

        self._topics = self._lake.topics()
        members = self._membership.topics_by_member()
        owners = self.ownership.owners()
        self._drop_lost()
        queues = [
            (name, queue_id)
            for name in sorted(frozenset().union(*members.values()))
            if name in self._topics
            for queue_id in range(self._topics[name].queue_count)
            if owners.get((name, queue_id), "") in ("", *members)  # the rest has a fixed owner
        ]

        share = assign(queues, members, owners)
        mine = {queue for queue, member in share.items() if member == self.ownership.owner}

        held = self.buffers.positions().keys()
        if not self.ownership.is_complete():
            mine = held - self._leaving.keys()
        others = {queue for queue, owner in owners.items() if owner != self.ownership.owner}
        unknown = owners.keys() - others - held  # a take was written, and its answer was lost
        self._take(sorted((mine - held - others) | unknown), None, self._topics)
        self.buffers.close_unused()
        deadline = time.monotonic() + self._session_timeout_s
        self._leaving = {queue: self._leaving.get(queue, deadline) for queue in sorted(held - mine)}
        self._hand_over(busy)

    def _hand_over(self, busy: Collection[Queue]) -> None:
        """Gives back the queues to hand over of which all that was taken is committed.

        One for which nobody commits goes after a session.
        """
        now = time.monotonic()
        returned = [
            queue
            for queue, deadline in self._leaving.items()
            if (self._is_settled(queue) and queue not in busy) or now >= deadline
        ]

        if returned:
            self.ownership.release(returned)
            self._forget(returned)

    def _take_named(self, wait_s: float | None) -> None:
        """Takes the named queues that exist now. Input: as of `Ownership.take`."""
        topics = self._lake.topics()
        self._take(self._named_queues(topics), wait_s, topics)

    def _named_queues(self, topics: Mapping[str, Topic]) -> list[Queue]:
        """Returns the named queues that exist and are not owned. Errors: UnknownTopicError."""
        new = []

        for name in self._subscription.topics:
            if name not in topics:
                continue

            count = topics[name].queue_count
            for queue_id in self._subscription.queues.get(name, range(count)):
                if self.ownership.owns(name, queue_id):
                    continue
                if queue_id >= count:
                    raise UnknownTopicError(
                        f"topic {name} has {counted(count, 'queue')}, no {queue_id}"
                    )
                new.append((name, queue_id))

        return new

    def _take(
        self, new: Sequence[Queue], wait_s: float | None, topics: Mapping[str, Topic]
    ) -> None:
        """Takes queues: all of them, or, where they are shared, those that are free."""
        if not new:
            return

        self._check(new, topics)
        # Before a queue is taken: when the store fails then, nothing is owned without a position.
        firsts = self._first_offsets(new, topics)
        # The latest is committed at once: later it would be another offset.
        begins = firsts if self._subscription.offset_reset == "latest" else {}
        if self._membership is None:
            taken = self.ownership.take(new, wait_s, begins)
        else:
            taken = self.ownership.take_free(new, begins)

        for (name, queue_id), offset in taken.items():
            position = firsts[name, queue_id] if offset is None else offset
            self.buffers.add(name, topics[name].table_id, queue_id, position)
            self._settled[name, queue_id] = position

    def _first_offsets(
        self, queues: Sequence[Queue], topics: Mapping[str, Topic]
    ) -> dict[Queue, int]:
        """Returns where a group begins that has no position in these queues.

        A queue that came after the start begins at its first message: the consumer waited for it.
        """
        counts = {name: topic.queue_count for name, topic in self._at_start.items()}
        late = {queue for queue in queues if queue[1] >= counts.get(queue[0], 0)}
        table_ids = _table_ids(topics)

        return {
            **self.buffers.first_offsets(late, table_ids, "earliest"),
            **self.buffers.first_offsets(
                [queue for queue in queues if queue not in late],
                table_ids,
                self._subscription.offset_reset,
            ),
        }

    def _check(self, queues: Sequence[Queue], topics: Mapping[str, Topic]) -> None:
        """Checks queues before anything is written about them.

        Their tables hold what was committed, and the group is beyond no queue's end: it would
        leave messages out.
        """
        unchecked = {name for name, _ in queues} - self._checked
        self._lake.require_whole(sorted(unchecked))
        self._checked |= unchecked

        committed = {
            queue: offset for queue, offset in self.ownership.committed(queues).items() if offset
        }
        ends = self.buffers.first_offsets(committed, _table_ids(topics), "latest")

        for (name, queue_id), offset in committed.items():
            end = ends[name, queue_id]
            if offset > end:
                raise OffsetOutOfRangeError(
                    f"topic {name} queue {queue_id}: the group has committed offset {offset}, "
                    f"and the queue ends at {end}: consumer_offsets is not of this lake, or "
                    "the lake was put back from an older copy; read on with another group"
                )


def _table_ids(topics: Mapping[str, Topic]) -> dict[str, int]:
    return {name: topic.table_id for name, topic in topics.items()}
