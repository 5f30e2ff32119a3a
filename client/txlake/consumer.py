"""A consumer of a lake's messages, one of its group, without Spark and without Java."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Literal

from txlake import protocol
from txlake._consumed_message import ConsumedMessage, to_messages
from txlake._dead_letters import TABLE as DEAD_LETTERS
from txlake._dead_letters import DeadLetters
from txlake._group_queues import GroupQueues, Subscription
from txlake._lake import Lake
from txlake._lanes import PushOptions
from txlake._listener_call import Listener
from txlake._members import TABLE as MEMBERS
from txlake._members import ConsumerMembers, Membership
from txlake._message_filter import make_filter
from txlake._numbers import is_whole, is_whole_number, require_seconds, require_whole
from txlake._ownership import Ownership
from txlake._paths import is_in_store
from txlake._poll_backoff import PollBackoff
from txlake._process import ProcessGuard, note_delta_is_used
from txlake._push import PushRun
from txlake._queues import QueueBuffers
from txlake._retries import TABLE as RETRIES
from txlake._retries import ConsumerRetries, GroupRetries, RetryPolicy
from txlake.errors import ClosedError, OffsetOutOfRangeError, TxlakeError, UnknownTopicError

# RocketMQ's: a message that is refused comes again after the delays of the levels 3 to 18.
RETRY_DELAYS_MS = protocol.delay_levels_ms()[2:]
_DELAY_MS_MAX = 10 * 365 * 86_400_000  # an instant that far away can be written


class Consumer:
    """A consumer of real topics: poll() gives messages in queue order, commit() stores how far.

    Each queue has one owner in a group. The consumers of a group share all queues: each takes its
    part, new queues as they come, and those of a consumer that left at once, of one that died when
    its `session_timeout_ms` is over. A queue that is to go to another consumer goes when commit()
    covers all that poll() has returned of it, and after a session at the latest. It waits for a
    topic that does not exist yet.

    `queues` ({"orders": [0, 1]}) names the queues to take and keep instead. Then a start waits for
    the session of an owner that died, and fails as soon as it sees that the owner lives.
    `wait_for_owner_ms` is another limit of this wait; 0: none.

    Before it takes queues of a topic it checks that the topic's table, and the lake's own, hold
    what was committed. Messages that poll() returned and commit() did not cover come again after
    a crash: each is consumed at least once. Only one thread at a time may use a consumer.

    Of a lake in a store each look is a request for each topic. While nothing comes, the pauses
    between looks grow from 50 ms to `store_look_ms_max`; it finds new topics and queues within 2 s.

    `topics` can say which messages are wanted by their tags, {"orders": "TagA || TagB"}, and `keys`
    by their business keys. Bodies of other messages are not read.

    Topics keep messages for some time only. A group without a committed offset begins at the
    earliest message that is there, or at the latest: `auto_offset_reset`; in a queue that comes
    later at its first message. Where a queue begins beyond the position, `out_of_range_reset` says
    what happens: "stop" raises OffsetOutOfRangeError; "earliest" and "latest" go on there, with a
    warning in the log `txlake.consumer` that says which messages were not read.

    Units: milliseconds. Machines compare the instants of each other's commits, so their clocks
    must agree to well within `session_timeout_ms`.
    Errors: LakeError, GroupBusyError, OffsetOutOfRangeError, ValueError.
    """

    def __init__(
        self,
        lake: str | os.PathLike[str],
        group: str,
        topics: Sequence[str] | Mapping[str, str],
        *,
        queues: Mapping[str, Sequence[int]] | None = None,
        storage_options: Mapping[str, str] | None = None,
        session_timeout_ms: int = protocol.SESSION_TIMEOUT_MS,
        wait_for_owner_ms: int | None = None,
        auto_offset_reset: Literal["earliest", "latest"] = "earliest",
        out_of_range_reset: Literal["stop", "earliest", "latest"] = "stop",
        keys: Collection[str] | None = None,
        max_poll_records: int = 500,
        store_look_ms_max: int = 500,
    ) -> None:
        if not protocol.matches(protocol.GROUP_PATTERN, group):
            raise ValueError(f"group {group!r}: {protocol.GROUP_PATTERN}")

        is_list = _is_iterable(topics) and not isinstance(topics, str)
        names = tuple(topics) if is_list else ()  # read once: it can be a generator
        if not names:
            raise ValueError(f"topics {topics!r}: a list with at least one name")
        for topic in names:  # it would wait for ever for a topic that cannot be
            if not protocol.matches(protocol.TOPIC_PATTERN, topic) or topic in protocol.NO_TOPICS:
                raise ValueError(f"topic {topic!r}: {protocol.TOPIC_PATTERN}, not '.' or '..'")

        names = tuple(dict.fromkeys(names))

        if auto_offset_reset not in ("earliest", "latest"):
            raise ValueError(f"auto_offset_reset {auto_offset_reset!r}: earliest or latest")
        if out_of_range_reset not in ("stop", "earliest", "latest"):
            raise ValueError(f"out_of_range_reset {out_of_range_reset!r}: stop, earliest or latest")
        for name, value in (
            ("session_timeout_ms", session_timeout_ms),
            ("max_poll_records", max_poll_records),
            ("store_look_ms_max", store_look_ms_max),
        ):
            require_whole(name, value, 1)
        if wait_for_owner_ms is not None:
            require_whole("wait_for_owner_ms", wait_for_owner_ms, 0)

        is_list = isinstance(keys, Collection) and not isinstance(keys, str)
        if keys is not None and not (is_list and all(isinstance(key, str) for key in keys)):
            raise ValueError(f"keys {keys!r}: a list")
        if keys is not None and len(keys) == 0:  # it would pass, and commit, all messages
            raise ValueError(f"keys {keys!r}: at least one, or None for all")
        expressions: Mapping[str, str] = topics if isinstance(topics, Mapping) else {}
        filters = {topic: make_filter(expressions.get(topic), keys) for topic in names}

        is_dict = isinstance(queues, Mapping)
        if queues is not None and not (is_dict and all(map(_is_iterable, queues.values()))):
            raise ValueError(f"queues {queues!r}: a dict, of each topic a list of numbers")

        named = {topic: tuple(ids) for topic, ids in (queues or {}).items()}
        unknown = named.keys() - set(names)
        if unknown:
            raise ValueError(f"queues {sorted(unknown)}: not in topics {list(names)}")
        empty = [topic for topic, ids in named.items() if not ids]
        if empty:
            raise ValueError(f"queues of {empty}: at least one number each")

        queue_ids = itertools.chain.from_iterable(named.values())
        wrong = [queue_id for queue_id in queue_ids if not is_whole(queue_id, 0)]
        if wrong:
            raise ValueError(f"queues {wrong}: 0 or more")

        note_delta_is_used()
        self._guard = ProcessGuard("consumer")
        self._poll_records_max = max_poll_records
        self._is_closed = False
        self._is_running = False
        self._is_closing = False  # when the run has ended
        self._is_stopped = False  # no Event: a second signal's handler waits for its lock for ever
        self._group = group
        self._storage_options = storage_options

        self._lake = Lake(lake, storage_options)
        self._queues = self._open_queues(
            group,
            Subscription(names, named, auto_offset_reset),
            storage_options,
            session_timeout_ms,
            PollBackoff(
                is_store=is_in_store(self._lake.path), pause_s_max=store_look_ms_max / 1000
            ),
            QueueBuffers(
                self._lake,
                out_of_range_reset,
                {topic: each for topic, each in filters.items() if each is not None},
            ),
        )
        try:
            self._queues.start(None if wait_for_owner_ms is None else wait_for_owner_ms / 1000)
        except BaseException:
            with suppress(TxlakeError):  # it would stay a member, and an owner, for a session
                self._queues.close()
            raise

    def _open_queues(
        self,
        group: str,
        subscription: Subscription,
        storage_options: Mapping[str, str] | None,
        session_timeout_ms: int,
        backoff: PollBackoff,
        buffers: QueueBuffers,
    ) -> GroupQueues:
        """Returns the queues of this consumer, of which none is taken yet."""
        owner = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        is_sharing = not subscription.queues
        lake_id = self._lake.lake_id

        ownership = Ownership(
            self._lake.uri("consumer_offsets"), storage_options, group, owner,
            session_timeout_ms, lake_id, drops_lost=is_sharing,
        )  # fmt: skip

        membership = None
        if is_sharing:
            members = ConsumerMembers(self._lake.uri(MEMBERS), storage_options, lake_id)
            membership = Membership(members, group, owner, subscription.topics, session_timeout_ms)

        return GroupQueues(
            self._lake, subscription, ownership, membership,
            buffers, backoff, session_timeout_ms / 1000,
        )  # fmt: skip

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ConsumedMessage]:
        """Returns messages one by one, for ever; a commit covers all that were polled together."""
        while True:
            yield from self.poll(1.0)

    def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[ConsumedMessage]:
        """Returns the next messages, each queue's in order; waits for some until the timeout.

        It also renews the hold on the queues: call it more often than every `session_timeout_ms`.
        Errors: LakeError, OffsetGapError, OffsetOutOfRangeError, GroupBusyError,
        StaleGenerationError; ValueError for a number that is none.
        """
        require_seconds("timeout_s", timeout_s)
        if max_records is None:
            max_records = self._poll_records_max
        require_whole("max_records", max_records, 0)

        deadline = time.monotonic() + timeout_s

        while True:
            self._check_open()
            self._queues.look()

            taken = self._queues.take(max_records)
            if taken or time.monotonic() >= deadline:
                return [message for topic, rows in taken for message in to_messages(topic, rows)]

            self._queues.wait(deadline)

    def commit(self) -> None:
        """Stores that the group is past all that poll() has returned.

        Errors: StaleGenerationError when another consumer has taken a queue over. A consumer that
        shares has committed its other queues then, and goes on; with `queues` make a new one.
        """
        self._check_open()
        self._queues.commit()

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Goes on at another offset of a queue; commit() stores it.

        Errors: UnknownTopicError for a queue that is not this consumer's; OffsetOutOfRangeError;
        ValueError for an offset that is no whole number.
        """
        self._check_open()
        self._check_owned(topic, queue_id)
        if not is_whole_number(offset):
            raise ValueError(f"offset {offset!r}: a whole number")

        end = self._queues.buffers.ends()[topic, queue_id]
        begin = self._queues.buffers.begins()[topic, queue_id]
        if not begin <= offset <= end:
            raise OffsetOutOfRangeError(
                f"topic {topic} queue {queue_id}: offset {offset}; {begin} to {end} are allowed"
            )

        self._queues.seek((topic, queue_id), int(offset))

    def seek_to_time(self, at: datetime) -> dict[tuple[str, int], int]:
        """Goes on at the first message of each queue that was delivered at an instant or later.

        Messages are delivered by epochs, and the instant of a message's epoch counts. Where epochs
        of that time are not recorded any more, a queue begins at its beginning; where there is no
        later message, at its end. commit() stores it.
        Output: the new positions. Errors: ValueError for an instant without a time zone; LakeError.
        """
        self._check_open()
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise ValueError(f"at {at!r}: an instant with a time zone")
        try:
            at = at.astimezone(timezone.utc)
        except OverflowError:
            raise ValueError(f"at {at!r}: an instant of the years 1 to 9999 in UTC") from None

        buffers = self._queues.buffers
        epoch = self._lake.epoch_from(at)
        offsets = buffers.begins() if epoch == 0 else buffers.offsets_at(self.assignment(), epoch)
        for queue, offset in offsets.items():
            self._queues.seek(queue, offset)
        return offsets

    def position(self, topic: str, queue_id: int) -> int:
        """Returns the offset of the next message that poll() gives."""
        self._check_owned(topic, queue_id)
        return self._queues.buffers.positions()[topic, queue_id]

    def assignment(self) -> list[tuple[str, int]]:
        """Returns the queues that this consumer has."""
        return sorted(self._queues.buffers.positions())

    def committed(self) -> dict[tuple[str, int], int | None]:
        """Returns how far the group is, for each (topic, queue) of this consumer."""
        self._check_open()
        return self._queues.ownership.committed(self._queues.buffers.positions())

    def lag(self) -> dict[tuple[str, int], int]:
        """Returns how many messages each (topic, queue) holds after the position."""
        self._check_open()
        return self._queues.buffers.lag()

    def run(
        self,
        listener: Listener,
        *,
        threads: int = 4,
        batch_max: int = 1,
        is_ordered: bool = False,
        retries_max: int = 16,
        retry_delays_ms: Sequence[int] = RETRY_DELAYS_MS,
        commit_interval_ms: int = 1_000,
    ) -> None:
        """Hands messages to a listener until stop(), and commits what is done.

        The listener gets a list of at most `batch_max` messages of one queue, on one of several
        `threads`. Each queue's messages are handed out in order, by one thread at a time. None or
        CONSUME_SUCCESS: they are done. RECONSUME_LATER, an exception or anything else: each comes
        again, alone, after the first of `retry_delays_ms`, then the second ...; the last one counts
        for all later ones. Refused more than `retries_max` times it is given up, and stands in the
        lake's table `consumer_dead_letters`. A list of answers speaks of each message.

        Meanwhile its queue goes on; with `is_ordered` it waits for the message.

        A run that stop() has ended can be followed by another one.

        Units: milliseconds. Replay: a message can come more than once, after a crash.
        Errors: LakeError, OffsetGapError, OffsetOutOfRangeError, ValueError; with `queues`
        StaleGenerationError. A store that is away is waited for until stop(); at the last commit
        it is a StoreAwayError.
        """
        if not callable(listener):
            raise ValueError(f"listener {listener!r}: a function of messages")
        for name, value in (
            ("threads", threads),
            ("batch_max", batch_max),
            ("commit_interval_ms", commit_interval_ms),
        ):
            require_whole(name, value, 1)
        require_whole("retries_max", retries_max, 0)

        is_list = _is_iterable(retry_delays_ms)
        delays = tuple(retry_delays_ms) if is_list else ()
        if not is_list or not delays or not all(is_whole(ms, 0, _DELAY_MS_MAX) for ms in delays):
            raise ValueError(
                f"retry_delays_ms {delays if is_list else retry_delays_ms!r}: at least one, each 0 "
                f"or more, up to {_DELAY_MS_MAX}"
            )

        self._is_running = True  # first: what a close() of meanwhile leaves to do is done below
        try:
            self._check_open()
            options = PushOptions(
                threads, batch_max, is_ordered, commit_interval_ms / 1000,
                RetryPolicy(delays, retries_max), self._poll_records_max,
            )  # fmt: skip
            options_of_tables = (self._storage_options, self._lake.lake_id)
            retries = ConsumerRetries(self._lake.uri(RETRIES), *options_of_tables)
            letters = DeadLetters(self._lake.uri(DEAD_LETTERS), *options_of_tables)

            PushRun(
                self._queues, GroupRetries(retries, self._group), letters, listener, options,
                lambda: self._is_stopped,
            ).run()  # fmt: skip
        finally:
            self._is_running = False
            if self._is_closing:
                self.close()

        # Not where the run fails: who runs again after errors ends by a stop() of meanwhile.
        self._is_stopped = False

    def stop(self) -> None:
        """Ends run() when the messages in hand are done: from any thread or signal handler.

        While none is on it ends the next one at its beginning: a signal can come before it.
        """
        self._is_stopped = True

    def close(self) -> None:
        """Gives the queues back: another consumer can take them at once. It commits nothing.

        From another thread, a signal handler or a listener it ends a run() that is on, as stop()
        does: that commits what is done, and gives the queues back at its end.
        Errors: LakeError; the consumer is not closed then: close it again.
        """
        self._is_closing = True  # first: a run that ends meanwhile sees it
        if self._is_running:
            self._is_stopped = True
            return

        if not self._is_closed:
            if self._guard.is_here:  # the queues of a process that forked are still its own
                self._queues.close()

            self._is_closed = True

    def _put_back(self, messages: Iterable[ConsumedMessage]) -> None:
        """Goes back to before messages that poll() has returned: they come again.

        Input: of each queue in their order. What is another consumer's by now is left to it, and
        what was deleted meanwhile to `out_of_range_reset`, as of any position.
        """
        self._check_open()
        firsts: dict[tuple[str, int], int] = {}
        for message in messages:
            firsts.setdefault((message.topic, message.queue_id), message.queue_offset)

        held = self._queues.buffers.positions()
        for queue, offset in firsts.items():
            if queue in held:
                self._queues.seek(queue, offset)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the consumer is closed")
        self._guard.check()

    def _check_owned(self, topic: str, queue_id: int) -> None:
        if (topic, queue_id) not in self._queues.buffers.positions():
            raise UnknownTopicError(f"topic {topic} queue {queue_id}: not this consumer's")


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)
