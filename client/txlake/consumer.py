"""A consumer of a lake's messages, one of its group, without Spark and without Java."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal, NamedTuple

from txlake import protocol
from txlake._consumer_extra import pa
from txlake._group_queues import GroupQueues, Subscription
from txlake._lake import Lake
from txlake._members import TABLE as MEMBERS
from txlake._members import ConsumerMembers, Membership
from txlake._ownership import Ownership
from txlake._paths import is_in_store
from txlake._poll_backoff import PollBackoff
from txlake._process import ProcessGuard, note_delta_is_used
from txlake._queues import QueueBuffers
from txlake._to_python import plain_columns
from txlake.errors import ClosedError, OffsetOutOfRangeError, TxlakeError, UnknownTopicError


class ConsumedMessage(NamedTuple):
    """A delivered message: `topic` and `id` name it, in every lake that is made of the same Kafka.

    (`topic`, `queue_id`, `queue_offset`) names it in its lake alone: in a lake that was made anew
    another message can stand there.
    `raw_headers` holds all headers when some are not in the other fields as they came: not UTF-8,
    null, repeated, or with a name of the protocol's. `reason`, `real_topic` and `asked_queue_id`
    are filled in the two topics of messages that could not be delivered.
    """

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes | None
    keys: str | None
    tags: str | None
    properties: Mapping[str, str]
    transaction_id: str | None
    producer_group: str | None
    stored_at: datetime
    born_at: datetime | None
    source: str
    real_topic: str | None
    asked_queue_id: int | None
    reason: str | None
    half_queue_id: int
    half_queue_offset: int
    raw_headers: Sequence[tuple[str, bytes | None]] | None
    epoch: int

    @property
    def id(self) -> str:
        """The record of Kafka that it was sent as: `half:2-17`, `schedule:0-5`.

        The same text names it in operators' commands. A topic has each id once.
        Source: docs/protocol/rules.md "Operator commands".
        """
        record = protocol.RecordTarget(self.source, self.half_queue_id, self.half_queue_offset)
        return str(record)


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

    Topics keep messages for some time only. A group without a committed offset begins at the
    earliest message that is there, or at the latest: `auto_offset_reset`. Where a queue begins
    beyond the position, `out_of_range_reset` says what happens: "stop" raises
    OffsetOutOfRangeError; "earliest" and "latest" go on there, with a warning in the log
    `txlake.consumer` that says which messages were not read.

    Units: milliseconds. Machines compare the instants of each other's commits, so their clocks
    must agree to well within `session_timeout_ms`.
    Errors: LakeError, GroupBusyError, OffsetOutOfRangeError, ValueError.
    """

    def __init__(
        self,
        lake: str | os.PathLike[str],
        group: str,
        topics: Sequence[str],
        *,
        queues: Mapping[str, Sequence[int]] | None = None,
        storage_options: Mapping[str, str] | None = None,
        session_timeout_ms: int = 30_000,
        wait_for_owner_ms: int | None = None,
        auto_offset_reset: Literal["earliest", "latest"] = "earliest",
        out_of_range_reset: Literal["stop", "earliest", "latest"] = "stop",
        max_poll_records: int = 500,
        store_look_ms_max: int = 500,
    ) -> None:
        if not protocol.matches(protocol.GROUP_PATTERN, group):
            raise ValueError(f"group {group!r}: {protocol.GROUP_PATTERN}")

        if isinstance(topics, str) or not topics:
            raise ValueError(f"topics {topics!r}: a list with at least one name")
        for topic in topics:  # it would wait for ever for a topic that cannot be
            if not protocol.matches(protocol.TOPIC_PATTERN, topic) or topic in protocol.NO_TOPICS:
                raise ValueError(f"topic {topic!r}: {protocol.TOPIC_PATTERN}, not '.' or '..'")

        if auto_offset_reset not in ("earliest", "latest"):
            raise ValueError(f"auto_offset_reset {auto_offset_reset!r}: earliest or latest")
        if out_of_range_reset not in ("stop", "earliest", "latest"):
            raise ValueError(f"out_of_range_reset {out_of_range_reset!r}: stop, earliest or latest")
        for name, value in (
            ("session_timeout_ms", session_timeout_ms),
            ("max_poll_records", max_poll_records),
            ("store_look_ms_max", store_look_ms_max),
        ):
            if value < 1:
                raise ValueError(f"{name} {value!r}: 1 or more")

        unknown = set(queues or {}) - set(topics)
        if unknown:
            raise ValueError(f"queues {sorted(unknown)}: not in topics {list(topics)}")

        queue_ids = itertools.chain.from_iterable((queues or {}).values())
        negative = [queue_id for queue_id in queue_ids if queue_id < 0]
        if negative:
            raise ValueError(f"queues {negative}: 0 or more")

        note_delta_is_used()
        self._guard = ProcessGuard("consumer")
        self._poll_records_max = max_poll_records
        self._is_closed = False

        names = tuple(dict.fromkeys(topics))
        named = {topic: tuple(ids) for topic, ids in (queues or {}).items()}
        self._lake = Lake(lake, storage_options)
        self._queues = self._open_queues(
            group,
            Subscription(names, named, auto_offset_reset),
            storage_options,
            session_timeout_ms,
            PollBackoff(
                is_store=is_in_store(self._lake.path), pause_s_max=store_look_ms_max / 1000
            ),
            out_of_range_reset,
        )
        try:
            self._queues.start(None if wait_for_owner_ms is None else wait_for_owner_ms / 1000)
        except BaseException:
            with suppress(TxlakeError):  # it would stay a member for a session
                self._queues.leave()
            raise

    def _open_queues(
        self,
        group: str,
        subscription: Subscription,
        storage_options: Mapping[str, str] | None,
        session_timeout_ms: int,
        backoff: PollBackoff,
        out_of_range_reset: str,
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
            QueueBuffers(self._lake, out_of_range_reset), backoff, session_timeout_ms / 1000,
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
        StaleGenerationError.
        """
        deadline = time.monotonic() + timeout_s
        if max_records is None:
            max_records = self._poll_records_max

        while True:
            self._check_open()
            self._queues.look()

            taken = self._queues.take(max_records)
            if taken or time.monotonic() >= deadline:
                return [message for topic, rows in taken for message in _messages(topic, rows)]

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

        Errors: UnknownTopicError for a queue that is not this consumer's; OffsetOutOfRangeError.
        """
        self._check_open()
        self._check_owned(topic, queue_id)

        end = self._queues.buffers.ends()[topic, queue_id]
        begin = self._queues.buffers.begins()[topic, queue_id]
        if not begin <= offset <= end:
            raise OffsetOutOfRangeError(
                f"topic {topic} queue {queue_id}: offset {offset}; {begin} to {end} are allowed"
            )

        self._queues.seek((topic, queue_id), offset)

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

    def close(self) -> None:
        """Gives the queues back: another consumer can take them at once. It commits nothing."""
        if not self._is_closed:
            self._is_closed = True

            if self._guard.is_here:  # the queues of a process that forked are still its own
                self._queues.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the consumer is closed")
        self._guard.check()

    def _check_owned(self, topic: str, queue_id: int) -> None:
        if (topic, queue_id) not in self._queues.buffers.positions():
            raise UnknownTopicError(f"topic {topic} queue {queue_id}: not this consumer's")


_COLUMNS = list(ConsumedMessage._fields[1:])


def _messages(topic: str, rows: pa.Table) -> Iterator[ConsumedMessage]:
    """Returns rows as messages, made column by column: one by one takes twice the time."""
    columns = dict(zip(_COLUMNS, plain_columns(rows.select(_COLUMNS)), strict=True))
    columns["properties"] = [properties or {} for properties in columns["properties"]]

    if rows["raw_headers"].null_count < rows.num_rows:
        columns["raw_headers"] = [
            None if headers is None else [(header["key"], header["value"]) for header in headers]
            for headers in columns["raw_headers"]
        ]

    return map(ConsumedMessage._make, zip(itertools.repeat(topic), *columns.values(), strict=False))
