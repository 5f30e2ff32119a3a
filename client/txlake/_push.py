"""A consumer's messages, handed to a listener on several threads.

The thread that calls `run` does everything that touches the lake: it reads ahead, hands out, writes
down what was refused, commits, and keeps the queues. The threads call the listener, nothing else.

Each queue is a lane: one thread at a time works through some of its messages, in order. What is
done of a lane is settled in this order, so that a crash between two steps loses nothing:

1. Messages that are given up are appended to `consumer_dead_letters`.
2. What was refused, and what a retry has done, is written into `consumer_retries`.
3. The lanes' positions are committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timezone

from txlake._assignment import Queue
from txlake._consumed_message import ConsumedMessage, to_messages
from txlake._dead_letters import DeadLetters
from txlake._group_queues import GroupQueues
from txlake._lanes import Lane, ListenerThreads, Outcome, PushOptions, Retried
from txlake._listener_call import Listener
from txlake._queues import Place
from txlake._retries import DEAD, Attempt, GroupRetries, Retry, RetryPolicy
from txlake.errors import StoreAwayError, TxlakeError

log = logging.getLogger("txlake.consumer")

_REFUSED_SETTLE_S = 0.2  # a refusal is written down so soon, even if commits are rarer
_RETRY_LOOK_S = 0.5  # between two looks for what an operator has resumed
_STORE_RETRY_LOOK_S = 5.0
_RETRY_AGAIN_S = 10.0  # between two looks at all that wait, whatever was passed over
_RETRIES_READ = 64  # that are due and read together
_AWAY_PAUSE_S = 1.0
_JOIN_S = 0.05


class PushRun:
    """One run of a listener. `is_stopped` ends it, after the messages that are in hand."""

    def __init__(
        self,
        queues: GroupQueues,
        retries: GroupRetries,
        dead_letters: DeadLetters,
        listener: Listener,
        options: PushOptions,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._queues = queues
        self._retries = retries
        self._dead_letters = dead_letters
        self._threads = ListenerThreads(listener, options)
        self._options = options
        self._is_stopped = is_stopped

        self._lanes: dict[Queue, Lane] = {}
        self._dropped: list[Lane] = []  # of lost queues, with messages in a thread's hand
        self._due: dict[Place, tuple[Retry, ConsumedMessage]] = {}  # read, and not handed out
        self._retrying: dict[Place, Retried] = {}
        self._unsettled: list[Outcome] = []
        self._settle_at = time.monotonic() + options.commit_interval_s
        self._retry_look_at = 0.0
        self._retry_again_at = 0.0

    def run(self) -> None:
        """Hands out messages until it is stopped; then all that was done is committed.

        Errors: those of `Consumer.poll`. A store that is away is waited for, but not at the end.
        """
        self._threads.start()
        is_sound = False
        try:
            while not self._is_stopped():
                self._turn()
            is_sound = True
        finally:
            self._end()
            try:
                # After an error as much as can be: the rest comes again.
                with nullcontext() if is_sound else suppress(TxlakeError):
                    self._settle()
            finally:
                self._go_back()

    def _turn(self) -> None:
        try:
            self._queues.look(self._retrying_queues())
            self._follow_assignment()
            self._hand_out()
            if self._is_time_to_settle():
                self._settle()
        except StoreAwayError as error:
            log.warning("%s", error)
            time.sleep(_AWAY_PAUSE_S)

        self._take_back(self._queues.pause_s())

    def _end(self) -> None:
        """Lets the threads end what they have in hand."""
        for lane in self._lanes.values():
            lane.is_ending = True
        self._threads.stop()

        while self._threads.are_alive(_JOIN_S):
            with suppress(TxlakeError):
                self._queues.keep()  # a slow listener keeps its queues

        self._take_back(0.0)
        with suppress(TxlakeError):  # queues without a lane have no messages in hand
            self._follow_assignment()
        for lane in self._lanes.values():  # what was not handed out is polled again
            self._queues.seek(lane.queue, lane.committable())

    def _go_back(self) -> None:
        """Lets the consumer go on behind what is written down: refusals that are not come again."""
        held = self._queues.buffers.positions()
        for queue, lane in self._lanes.items():
            if queue in held and held[queue] != lane.settled:
                self._queues.seek(queue, lane.settled)

    def _take_back(self, wait_s: float) -> None:
        """Takes back what threads have finished; waits for some of it."""
        for task in self._threads.take_finished(wait_s):
            if isinstance(task, Lane):
                task.is_busy = False
            else:
                self._unsettled += task.outcomes
                if not task.outcomes:  # it waits as before
                    del self._retrying[task.place]
                    self._retry_again_at = 0.0

    def _follow_assignment(self) -> None:
        """Makes lanes for new queues, drops those of lost ones, ends those that are to go."""
        self._queues.take_lost()
        self._drop_lost()

        in_hand = {lane.queue for lane in self._dropped}
        generations = self._queues.ownership.generations()
        new = {
            queue: Lane(queue, generations[queue], position, settled=position)
            for queue, position in self._queues.buffers.positions().items()
            if queue in generations and queue not in self._lanes and queue not in in_hand
        }
        if new:
            self._retries.look_again()  # first: where it fails, the queues wait for the next look
            self._lanes |= new

        leaving = set(self._queues.leaving())
        retrying = self._retrying_queues() if leaving else set()
        for queue in leaving:
            lane = self._lanes.get(queue)
            if lane and not lane.is_busy and queue not in retrying:
                # Messages in hand that nobody has begun go with the queue.
                self._queues.seek(queue, lane.committable())
                lane.position = lane.committable()
                lane.messages, lane.done = [], 0
                self._settle_at = 0.0
        for queue, lane in self._lanes.items():
            lane.is_ending = queue in leaving

    def _drop_lost(self) -> None:
        """Drops the lanes of queues that are lost, or were lost and are taken again.

        Meanwhile another consumer, or an operator, can have moved the group on.
        """
        positions = self._queues.buffers.positions()
        generations = self._queues.ownership.generations()

        for queue, lane in list(self._lanes.items()):
            if queue not in positions or lane.generation != generations.get(queue):
                lane.is_ending = True
                self._dropped.append(self._lanes.pop(queue))

        self._dropped = [lane for lane in self._dropped if lane.is_busy]

    def _retrying_queues(self) -> set[Queue]:
        """Returns the queues of the retries that are handed out, or not written down yet."""
        return {queue for queue, _ in self._retrying}

    def _hand_out(self) -> None:
        """Gives the threads what they can work on."""
        now = _now()
        for lane in self._lanes.values():
            if lane.is_busy or lane.is_ending:
                continue
            if lane.blocked_until is not None:
                if now < lane.blocked_until:
                    continue
                self._unblock(lane)

            if lane.done == len(lane.messages):
                self._refill(lane)
            if lane.messages and lane.blocked_until is None:
                lane.is_busy = True
                self._threads.put(lane)

        self._hand_out_retries()

    def _refill(self, lane: Lane) -> None:
        """Takes the next messages of a queue into its lane."""
        rows, position = self._queues.buffers.take_of(lane.queue, self._options.chunk_max)
        if rows is None:
            lane.messages, lane.done, lane.position = [], 0, position
            return

        messages = list(to_messages(lane.queue[0], rows))
        waiting = self._retries.waiting_offsets(lane.queue)
        if waiting and self._options.is_ordered:
            messages = [
                message._replace(reconsume_times=waiting.get(message.queue_offset, 0))
                for message in messages
            ]
        elif waiting:  # what waits for its retry is not handed out here
            messages = [message for message in messages if message.queue_offset not in waiting]

        lane.messages, lane.done, lane.position = messages, 0, position
        if self._options.is_ordered:
            self._unblock(lane)

    def _unblock(self, lane: Lane) -> None:
        """Lets an ordered lane go on, or wait until its first message is due."""
        lane.blocked_until = None
        if lane.done == len(lane.messages):
            return

        message = lane.messages[lane.done]
        row = self._retries.row(lane.queue, message.queue_offset)
        if row is None or row.state == DEAD:
            return

        lane.messages[lane.done] = message._replace(reconsume_times=row.retries)
        if _now() < row.due_at:
            lane.blocked_until = row.due_at

    def _hand_out_retries(self) -> None:
        """Gives the threads messages whose time has come again, a few at a time."""
        self._look_for_retries()

        free = 2 * self._options.threads - len(self._retrying)
        if free > 0 and not self._due:
            self._read_due()

        while free > 0 and self._due:
            place = next(iter(self._due))
            row, message = self._due.pop(place)
            # Meanwhile its queue can be gone, or an operator has dropped it.
            if self._retries.row(*place) != row or not self._is_retried_here(row):
                continue

            message = message._replace(reconsume_times=row.retries)
            retried = Retried(message, self._lanes[row.queue].generation)
            self._retrying[place] = retried
            self._threads.put(retried)
            free -= 1

    def _look_for_retries(self) -> None:
        """Looks now and then for what an operator has resumed or dropped."""
        now = time.monotonic()
        if now < self._retry_look_at:
            return

        self._retry_look_at = now + (
            _STORE_RETRY_LOOK_S if self._queues.is_in_store else _RETRY_LOOK_S
        )
        if now >= self._retry_again_at:
            self._retry_again_at = now + _RETRY_AGAIN_S
            self._retries.look_again()
        else:
            self._retries.refresh()

    def _read_due(self) -> None:
        """Reads the messages whose time has come again: one read for all of a topic.

        What a topic does not keep any more comes from the dead letters. What is behind a queue's
        end, in a lake that was put back, is looked for again later.
        """
        due = self._retries.due(self._is_retried_here, _RETRIES_READ)
        if not due:
            return

        rows_by_place = {(row.queue, row.queue_offset): row for row in due}
        read, deleted = self._queues.buffers.read_places(rows_by_place)
        messages = [
            message for (topic, _), rows in read.items() for message in to_messages(topic, rows)
        ]

        if deleted:
            gone = [rows_by_place[place] for place in deleted]
            letters = self._dead_letters.read(gone)
            for row in gone:
                if row.key in letters:
                    messages += to_messages(row.topic, letters[row.key])
            self._give_up([row for row in gone if row.key not in letters])

        places = {((each.topic, each.queue_id), each.queue_offset): each for each in messages}
        self._due = {
            place: (row, places[place]) for place, row in rows_by_place.items() if place in places
        }

    def _is_retried_here(self, row: Retry) -> bool:
        """Returns whether a message comes again beside its queue, by this consumer."""
        lane = self._lanes.get(row.queue)
        place = row.queue, row.queue_offset
        if lane is None or lane.is_ending or place in self._retrying or place in self._due:
            return False
        # What an ordered lane has just done can still stand among those that wait.
        return not self._options.is_ordered or row.queue_offset < lane.settled

    def _give_up(self, rows: Sequence[Retry]) -> None:
        """Writes that messages are dead which neither their topic nor the dead letters have."""
        for row in rows:
            log.warning(
                "topic %s queue %d offset %d: its topic does not keep it any more, and it was to "
                "come again: it is given up",
                row.topic,
                row.queue_id,
                row.queue_offset,
            )

        reason = "its topic does not keep it any more"
        attempts = [
            Attempt(row.queue, row.queue_offset, row.retries, row.generation, reason, _now())
            for row in rows
        ]
        self._retries.write(attempts, RetryPolicy((0,), 0))

    def _is_time_to_settle(self) -> bool:
        now = time.monotonic()
        if now >= self._settle_at:
            return True

        has_refused = self._unsettled or any(lane.outcomes for lane in self._lanes.values())
        early_at = self._settle_at - self._options.commit_interval_s + _REFUSED_SETTLE_S
        return bool(has_refused) and now >= early_at

    def _settle(self) -> None:
        """Writes down what was refused and what is done; the steps are the module's."""
        self._settle_at = time.monotonic() + self._options.commit_interval_s

        # Positions first: what was refused before them is then among the outcomes.
        positions = {queue: lane.committable() for queue, lane in self._lanes.items()}
        for lane in self._lanes.values():
            while lane.outcomes:
                self._unsettled.append(lane.outcomes.popleft())

        self._write_down()
        settled, self._unsettled = self._unsettled, []

        for outcome in settled:
            place = outcome.queue, outcome.message.queue_offset
            is_retried = self._retrying.pop(place, None) is not None
            owned = self._lanes.get(outcome.queue)
            if owned is None or owned.generation != outcome.generation:
                continue  # the queue was away meanwhile: its messages come by its position
            if outcome.reason and self._options.is_ordered and not is_retried:
                self._settle_blocked(owned, outcome.message.queue_offset)
                # No thread has the lane. What is dead is not handed out again.
                positions[outcome.queue] = owned.committable()

        for queue, position in positions.items():
            self._lanes[queue].settled = position
        self._queues.commit_kept(positions, self._retrying_queues())

    def _write_down(self) -> None:
        """Writes what was given up, then all that was refused, and what retries have done."""
        # What was refused of a queue that is lost comes to its new owner.
        generations = self._queues.ownership.generations()
        outcomes = [
            outcome
            for outcome in self._unsettled
            if outcome.reason is None or generations.get(outcome.queue) == outcome.generation
        ]
        if not outcomes:
            return

        attempts = [self._attempt(outcome) for outcome in outcomes]
        messages = {(each.queue, each.message.queue_offset): each.message for each in outcomes}
        dying = self._retries.dying(attempts, self._options.policy)

        self._dead_letters.append(
            (row, messages[row.queue, row.queue_offset]._asdict()) for row in dying
        )
        self._retries.write(attempts, self._options.policy)

    def _settle_blocked(self, lane: Lane, offset: int) -> None:
        """Lets an ordered lane wait for its first message, or go on behind it if it is dead."""
        if lane.committable() != offset:
            return  # the queue was away meanwhile

        row = self._retries.row(lane.queue, offset)
        lane.blocked_until = None
        is_in_hand = lane.done < len(lane.messages)  # else it was to go, and is read again

        if row is None or row.state == DEAD:  # done by another consumer, or given up
            if is_in_hand:
                lane.done += 1
            else:
                lane.position = offset + 1
                self._queues.seek(lane.queue, lane.position)
        elif is_in_hand:
            lane.messages[lane.done] = lane.messages[lane.done]._replace(
                reconsume_times=row.retries
            )
            lane.blocked_until = row.due_at

    def _attempt(self, outcome: Outcome) -> Attempt:
        message = outcome.message
        return Attempt(
            outcome.queue, message.queue_offset, message.reconsume_times, outcome.generation,
            outcome.reason, outcome.at,
        )  # fmt: skip


def _now() -> datetime:
    return datetime.now(timezone.utc)
