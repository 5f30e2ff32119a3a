"""The answers to a producer group's checks: how did this local transaction end?

One thread reads the group's check topic. A bounded number of threads ask the listener, each about
another transaction. A check's offset is committed when its answer is in Kafka, or could not be
sent: then the job asks again. So when a producer dies, the next one gets the checks that it had
taken and not answered.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from txlake import protocol
from txlake._client_log import CLIENT_LOGGER, RepeatedLines
from txlake._done_offsets import DoneOffsets
from txlake._kafka import make_client
from txlake._operations import OperationBatcher
from txlake._records import Header, readable_headers
from txlake.listener import (
    CheckedMessage,
    LocalTransactionState,
    TransactionListener,
    call_safely,
)
from txlake.options import ProducerOptions
from txlake.signing import SigningKey, is_signed_check

log = logging.getLogger("txlake.checks")
# While Kafka is away each try fails the same way.
_repeated = RepeatedLines(log)

_POLL_S = 0.2
_POLL_INTERVAL_MS = 300_000  # Kafka's default; it must not be less than the session
_CONNECTING = ("bootstrap.servers", "metadata.broker.list", "oauth_cb")
_RETRY_S = 1.0
_FULL_WARNING_S = 60.0
# The half queue, the offsets and the transaction id of the halves that a check is about.
_Halves = tuple[int, tuple[int, ...], str]
_ENSURE_S = 10.0  # between two looks whether the topic is still there
_FIRST_LOOK_S = 1.0  # without a broker a producer is made all the same
RUNNING_REMARK = "the local transaction still runs"


def require_consumer(settings: Mapping[str, Any], options: ProducerOptions) -> None:
    """Checks that Kafka's client makes a consumer of checks with these settings.

    It compares some of them only for a consumer. The one that is made here connects to nothing and
    asks for no token, which can take seconds; whether its login is right a producer shows, too.
    Errors: ValueError with what Kafka's client says of a setting.
    """
    config = {
        **_consumer_config(settings, options, options.check_topic_prefix),
        "security.protocol": "plaintext",
        "log_level": 0,  # the consumer that is used says it
    }
    make_client(
        Consumer, {name: value for name, value in config.items() if name not in _CONNECTING}
    ).close()


def _consumer_config(
    settings: Mapping[str, Any], options: ProducerOptions, topic: str
) -> dict[str, Any]:
    """Returns the settings of the consumer of a group's check topic."""
    session_ms = options.check_session_timeout_ms
    return {
        "session.timeout.ms": session_ms,
        "max.poll.interval.ms": max(_POLL_INTERVAL_MS, session_ms),
        "message.max.bytes": protocol.batch_bytes_max(options.message_bytes_max),
        "receive.message.max.bytes": protocol.RECEIVED_BYTES_MAX,
        **settings,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }


class CheckAnswerer:
    """A reader of checks: it asks the listener, and sends the answers as operations."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        producer_group: str,
        listener: TransactionListener,
        operations: OperationBatcher,
        is_running: Callable[[str], bool],
        options: ProducerOptions,
        keys: Sequence[SigningKey] = (),
    ) -> None:
        self.refusal = ""  # why Kafka never takes this group's check topic

        self._settings = dict(settings)
        self._group = producer_group
        self._topic = protocol.check_topic(producer_group, options.check_topic_prefix)
        self._listener = listener
        self._operations = operations
        self._is_running = is_running
        self._options = options
        self._keys = tuple(keys)

        self._forged = 0  # checks that were not answered, since they are not signed
        self._unreadable = 0  # records with a header that Kafka's client cannot read
        self._done = DoneOffsets()

        self._admin: AdminClient | None = None
        self._ensured_at = 0.0  # monotonic s
        self._has_looked = threading.Event()
        self._is_closing = threading.Event()

        # Bounds the transactions that were taken and not answered.
        self._slots = threading.BoundedSemaphore(options.check_threads)
        # The records that ask about each transaction that is being answered, by its halves. A
        # transaction that hangs takes one worker, however often the job asks about it.
        self._answering: dict[_Halves, list[tuple[int, int]]] = {}
        self._answering_lock = threading.Lock()

        # Whether Kafka's client reads the assigned partitions; None after an assignment, since it
        # depends on the version of the client whether a partition that was paused still is.
        self._is_reading: bool | None = None
        self._full_since: float | None = None  # monotonic s; None: a worker is free
        self._warned_at = 0.0

        # None ends a worker.
        self._questions: queue.SimpleQueue[CheckedMessage | None] = queue.SimpleQueue()

        # A ThreadPoolExecutor would wait at exit for its threads, and so for a listener that hangs.
        self._workers = [
            threading.Thread(target=self._answer, name=f"txlake-check-{number}", daemon=True)
            for number in range(options.check_threads)
        ]
        self._reader = threading.Thread(target=self._run, name="txlake-checks", daemon=True)

        for thread in (*self._workers, self._reader):
            thread.start()

    def close(self, deadline: float) -> None:
        """Stops reading, and waits for running answers until the deadline (monotonic s).

        The group's other producers get the checks that were not answered.
        """
        self._is_closing.set()
        for _ in self._workers:
            self._questions.put(None)

        for thread in (*self._workers, self._reader):
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def require_possible(self) -> None:
        """Waits a moment for the first look at Kafka, and closes if it refuses this check topic.

        Errors: ValueError that names the group's check topic and the other one.
        """
        self._has_looked.wait(_FIRST_LOOK_S)
        if self.refusal:
            self.close(time.monotonic() + _FIRST_LOOK_S)
            raise ValueError(self.refusal)

    def _run(self) -> None:
        """Reads checks until `close`; after any error it begins anew."""
        try:
            while not self._is_closing.is_set():
                try:
                    if self._has_topic():
                        self._consume_topic()
                except BaseException:  # the thread goes on: the group is asked through it
                    log.exception("%s: reading checks failed; it starts again", self._topic)
                self._is_closing.wait(_RETRY_S)
        finally:
            self._has_looked.set()

    def _consume_topic(self) -> None:
        """Reads checks until it is closing, or the topic is gone."""
        config = _consumer_config(self._settings, self._options, self._topic)
        consumer = Consumer(config, logger=CLIENT_LOGGER)
        consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

        try:
            while not self._is_closing.is_set():
                self._poll_once(consumer)
                self._commit(consumer, is_last=False)

                if self._is_gone(consumer):
                    log.warning(
                        "%s was deleted: it is made again, and the job asks again what stood in it",
                        self._topic,
                    )
                    return

            deadline = time.monotonic() + self._options.close_timeout_ms / 2000
            for worker in self._workers:
                worker.join(max(deadline - time.monotonic(), 0.0))
            self._operations.flush()

            deadline = time.monotonic() + 1.0
            while self._done.has_open() and time.monotonic() < deadline:
                time.sleep(0.005)

            self._commit(consumer, is_last=True)
        finally:
            consumer.close()

    def _has_topic(self) -> bool:
        """Returns whether the check topic exists; asks Kafka to make it if not."""
        try:
            if self._admin is None:
                self._admin = AdminClient(self._settings, logger=CLIENT_LOGGER)

            topics = self._admin.list_topics(timeout=_RETRY_S * 5).topics
            self._ensured_at = time.monotonic()
            if self._topic in topics:
                self._has_looked.set()
                return True

            other = protocol.colliding_topic(self._topic, topics)
            if other is not None:
                self._refuse(other)
                return False

            self._has_looked.set()
            new = NewTopic(
                self._topic,
                num_partitions=self._options.check_topic_partitions,
                config=protocol.check_topic_config(self._options.message_bytes_max),
            )
            self._admin.create_topics([new])[self._topic].result(timeout=_RETRY_S * 5)
        except Exception as error:  # two producers can make it at once; a broker can be away
            _repeated.log(logging.INFO, "%s is not there yet: %s", self._topic, error)
        return False

    def _refuse(self, other: str) -> None:
        """Notes, and logs once, that Kafka takes no check topic of this group's name."""
        if not self.refusal:
            self.refusal = (
                f"producer_group {self._group!r}: Kafka takes no topic {self._topic} beside "
                f"{other}, since it counts '.' and '_' as one; the group would never be asked: "
                "choose another name"
            )
            log.error("%s", self.refusal)
        self._has_looked.set()

    def _is_gone(self, consumer: Consumer) -> bool:
        """Returns whether the topic was deleted; Kafka is asked now and then."""
        if time.monotonic() - self._ensured_at < _ENSURE_S:
            return False

        self._ensured_at = time.monotonic()
        try:
            return self._topic not in consumer.list_topics(timeout=_RETRY_S * 5).topics
        except KafkaException as error:
            _repeated.log(logging.INFO, "%s was not looked for: %s", self._topic, error)
            return False

    def _poll_once(self, consumer: Consumer) -> None:
        """Reads a check, if a worker is free for it; else it only polls to stay in the group."""
        if not self._slots.acquire(timeout=_POLL_S):
            self._wait_full(consumer)
            return

        is_handed_over = False
        try:
            self._full_since = None
            self._set_reading(consumer, True)
            record = consumer.poll(_POLL_S)
            is_handed_over = record is not None and self._take(record)
        finally:
            if not is_handed_over:
                self._slots.release()

    def _wait_full(self, consumer: Consumer) -> None:
        """Stays a member of the group while every worker is at a transaction that hangs.

        A consumer that does not poll loses its partitions after max.poll.interval.ms, to the next
        producer, which would fill in the same way.
        """
        self._set_reading(consumer, False)
        record = consumer.poll(_POLL_S)

        # A record can come from a partition that this very poll has assigned.
        if record is not None and not self._is_error(record):
            partition = record.partition()
            offset = record.offset()
            assert partition is not None  # of every record that was read
            assert offset is not None
            self._set_reading(consumer, False)
            consumer.seek(TopicPartition(self._topic, partition, offset))

        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now

        if now - max(self._full_since, self._warned_at) >= _FULL_WARNING_S:
            self._warned_at = now
            with self._answering_lock:
                ids = ", ".join(transaction_id for _, _, transaction_id in self._answering)
            log.warning(
                "%s: all %d threads that answer checks have waited %.0f s for the listener, at "
                "transactions %s; this producer answers no other check meanwhile",
                self._topic,
                self._options.check_threads,
                now - self._full_since,
                ids,
            )

    def _set_reading(self, consumer: Consumer, is_reading: bool) -> None:
        """Pauses the assigned partitions, or reads on, if that is not so already."""
        if self._is_reading is is_reading:
            return

        self._is_reading = is_reading
        if is_reading:
            consumer.resume(consumer.assignment())
        else:
            consumer.pause(consumer.assignment())

    def _is_error(self, record: Message) -> bool:
        """Returns whether Kafka's client gives an error in place of a record; it is logged."""
        error = record.error()
        if error is None:
            return False

        _repeated.log(logging.INFO, "%s: %s", self._topic, error)
        return True

    def _take(self, record: Message) -> bool:
        """Takes a record that was read. Output: whether a worker has it now."""
        if self._is_error(record):
            return False

        partition = record.partition()
        offset = record.offset()
        assert partition is not None  # of every record that was read
        assert offset is not None
        self._done.open(partition, offset)

        check = self._parse_record(record, partition, offset)
        if check is None:
            self._done.close(partition, offset)
            return False

        with self._answering_lock:
            halves = _halves(check)
            is_new = halves not in self._answering
            self._answering.setdefault(halves, []).append((partition, offset))

        if is_new:
            self._questions.put(check)
        return is_new

    def _parse_record(self, record: Message, partition: int, offset: int) -> CheckedMessage | None:
        """Returns the check that a record is; None if it is none for this group, or a forged one.

        A forged or an unreadable one is logged at 1, 2, 4, 8 ... of them: a stranger who writes
        them does not fill the log.
        """
        headers, unreadable = readable_headers(record)
        if unreadable:
            self._unreadable += 1
            if self._unreadable & (self._unreadable - 1) == 0:
                log.warning(
                    "%s: partition %s offset %s is skipped: the name of a header is not UTF-8; "
                    "%d such records so far",
                    self._topic,
                    partition,
                    offset,
                    self._unreadable,
                )
            return None

        check = parse_check(headers, record.value(), self._group)
        if check is None:
            log.warning(
                "%s: partition %s offset %s is no check for this group",
                self._topic,
                partition,
                offset,
            )
            return None

        if self._keys and not is_signed_check(self._keys, headers, record.value()):
            self._forged += 1
            if self._forged & (self._forged - 1) == 0:
                log.warning(
                    "%s: partition %s offset %s has no valid signature and is not answered; "
                    "%d such checks so far",
                    self._topic,
                    partition,
                    offset,
                    self._forged,
                )
            return None

        return check

    def _answer(self) -> None:
        for message in iter(self._questions.get, None):
            if self._is_closing.is_set():
                return

            try:
                self._answer_one(message)
            except BaseException:  # the thread goes on: the job asks again
                log.exception("the answer to check %s was not sent", message.check_id)
                self._finish(message, False)
            finally:
                self._slots.release()

    def _answer_one(self, message: CheckedMessage) -> None:
        if self._is_running(message.transaction_id):
            state = LocalTransactionState.UNKNOWN
            remark = RUNNING_REMARK
        else:
            state, remark = call_safely(
                self._listener.check_local_transaction, message, caught=BaseException
            )

        extra = [
            (protocol.FROM_CHECK, "true"),
            (protocol.CHECK_ID, message.check_id),
            *([(protocol.REMARK, remark)] if remark else []),
        ]
        self._operations.add(
            message.queue_id,
            message.queue_offsets,
            message.transaction_id,
            state.value,
            partial(self._finish, message),
            extra,
        )

    def _finish(self, message: CheckedMessage, _is_sent: bool) -> None:
        """Ends the records that asked about a transaction, once its answer is sent or given up."""
        with self._answering_lock:
            records = self._answering.pop(_halves(message), [])

        for partition, offset in records:
            self._done.close(partition, offset)

    def _commit(self, consumer: Consumer, is_last: bool) -> None:
        offsets = [
            TopicPartition(self._topic, partition, offset)
            for partition, offset in self._done.take_advanced().items()
        ]
        if not offsets:
            return

        try:
            if is_last:
                consumer.commit(offsets=offsets, asynchronous=False)
            else:
                consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _repeated.log(
                logging.INFO,
                "%s: offsets were not committed, checks can come again: %s",
                self._topic,
                error,
            )

    def _on_assign(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._is_reading = None

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(consumer, is_last=True)
        self._done.forget(partition.partition for partition in partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._done.forget(partition.partition for partition in partitions)


def parse_check(
    headers: Sequence[Header], body: bytes | None, producer_group: str
) -> CheckedMessage | None:
    """Returns a record's check; None if the record cannot be read as one for this group.

    Source: docs/protocol/wire.md "The check".
    """
    values = _texts(headers)

    offsets = values.get(protocol.HALF_QUEUE_OFFSET, "")
    queue_id = values.get(protocol.HALF_QUEUE_ID, "")
    check_times = values.get(protocol.CHECK_TIMES, "")
    is_readable = (
        protocol.matches(protocol.OFFSETS_PATTERN, offsets)
        and protocol.matches(protocol.SMALL_NUMBER_PATTERN, queue_id)
        and protocol.matches(protocol.SMALL_NUMBER_PATTERN, check_times)
        and protocol.matches(protocol.TRANSACTION_ID_PATTERN, values.get(protocol.UNIQ_KEY, ""))
        and protocol.CHECK_ID in values
        and values.get(protocol.PGROUP, "") == producer_group
    )
    if not is_readable:
        return None

    return CheckedMessage(
        transaction_id=values[protocol.UNIQ_KEY],
        topic=values.get(protocol.REAL_TOPIC, ""),
        body=body,
        queue_id=int(queue_id),
        queue_offsets=tuple(int(offset) for offset in offsets.split(",") if offset),
        check_times=int(check_times),
        check_id=values[protocol.CHECK_ID],
        keys=values.get(protocol.KEYS),
        tags=values.get(protocol.TAGS),
        properties={name: value for name, value in values.items() if protocol.is_property(name)},
        is_body_omitted=body is None and values.get(protocol.BODY_OMITTED) == "true",
    )


def _halves(check: CheckedMessage) -> _Halves:
    return check.queue_id, check.queue_offsets, check.transaction_id


def _texts(headers: Sequence[Header]) -> dict[str, str]:
    """Returns the headers that are text; of a name that stands twice the first header counts."""
    first: dict[str, bytes | None] = {}
    for name, value in headers:
        first.setdefault(name, value)

    texts = {}
    for name, value in first.items():
        with suppress(UnicodeDecodeError):
            if value is not None:
                texts[name] = value.decode()
    return texts
