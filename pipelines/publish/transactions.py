"""Kafka transactions of one publisher: librdkafka's producer, with its errors turned into ours.

When the destination refuses one record, librdkafka reports the same error for its whole batch. To
name the record, all are sent once more, each in a batch of its own, in a transaction that is
aborted (`find_refused`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from pipelines.errors import KafkaAwayError, KafkaRefusedError, StartError
from pipelines.kafka_client.acls import PUBLISHER_IDS
from pipelines.kafka_client.connection import client_config
from pipelines.publish.errors import FencedError, PublishError
from pipelines.publish.records import Record
from pipelines.settings import PublisherSettings

_TRANSACTION_S: Final = 60.0  # for each request of a transaction
# Records in librdkafka: with eight headers one of 256 B takes 1.2 KB there. More of them take
# more memory, and no less time (DECISIONS.md 31).
_QUEUED_MAX: Final = 4_000
_QUEUED_KBYTES: Final = 6_144  # or two of the largest records, if that is more
_BATCH_BYTES: Final = 1_000_000  # librdkafka's default
# While a full batch waits for requests before it, librdkafka's thread polls without a pause.
_IN_FLIGHT: Final = {"max.in.flight.requests.per.connection": 1}
# Options of a producer that looks for a refused record: many requests, one record each.
EACH_ALONE: Final = {"batch.num.messages": 1, "max.in.flight.requests.per.connection": 5}
# How long records are collected for a batch that is not full; a commit sends them at once.
_LINGER_MS: Final = 20
_POLL_S: Final = 0.1
_ROOM_S: Final = 0.01  # a third of what the queue holds has gone by then
_STOPPED_ROOM_S: Final = 5.0  # how long a process that is stopped waits for room

# Another process has the same transactional id, or had it since.
_FENCED_CODES: Final = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
)
# The destination refuses a record itself: trying again does not help.
_RECORD_CODES: Final = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_MSG,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
)
# The publisher lacks a right: waiting does not help.
_ACL_CODES: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


class AddressedRecord(NamedTuple):
    """A record with its Kafka topic and partition."""

    destination: str
    partition: int
    record: Record


class RecordRefusedError(Exception):
    """The destination refuses some record of a transaction; which one is not known yet."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())


def transactional_id(lake_id: str, publisher: str) -> str:
    """Returns the id by which Kafka lets only the newest process of a publisher write."""
    return f"{PUBLISHER_IDS}{lake_id}-{publisher}"


class Transactions:
    """One publisher's producer. It writes nothing before `begin`.

    Input: `batch_bytes_max`: the smallest max.message.bytes of its destinations, which no batch may
    exceed; `is_stopped`: whether the process is to end, so that it waits less; `options`: of
    librdkafka, which go before ours.
    Errors: StartError for settings that librdkafka does not take. Of all methods: FencedError,
    KafkaAwayError, KafkaRefusedError, RecordRefusedError; PublishError where it is the progress
    topic that refuses a record.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        lake_id: str,
        batch_bytes_max: int,
        is_stopped: Callable[[], bool] = lambda: False,
        **options: Any,
    ) -> None:
        self._timeout_s = settings.transaction_timeout_ms / 1000
        self._is_stopped = is_stopped
        self._refused_progress: list[str] = []  # one sentence for each record
        config = {
            **_IN_FLIGHT,  # a destination far away can want more: its client settings go before
            **client_config(settings.bootstrap_servers, settings.client),
            "transactional.id": transactional_id(lake_id, settings.name),
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "batch.size": min(_BATCH_BYTES, batch_bytes_max),
            "message.max.bytes": 1_000_000_000,  # the destination says what is too large
            "queue.buffering.max.messages": _QUEUED_MAX,
            "queue.buffering.max.kbytes": max(_QUEUED_KBYTES, 2 * batch_bytes_max // 1024 + 1),
            "batch.num.messages": 100_000,
            "linger.ms": _LINGER_MS,
            # Kafka ends a transaction a moment after it says so, and the next one waits for it.
            "retry.backoff.ms": 10,
            **options,
        }

        try:
            self._producer = Producer(config)
        except KafkaException as error:
            raise StartError(f"[publish.{settings.name}.client]: {error.args[0].str()}") from None

    def init(self) -> None:
        """Ends the open transaction of the process before, and lets it write no more."""
        with self._translating_errors():
            self._producer.init_transactions(_TRANSACTION_S)

    def begin(self) -> None:
        """Begins a transaction."""
        with self._translating_errors():
            self._producer.begin_transaction()

    def send(self, destination: str, partition: int, records: Iterable[Record]) -> int:
        """Sends records to a partition. Output: their number."""
        produce = self._producer.produce
        count = 0

        with self._translating_errors():
            for value, key, at_ms, headers in records:
                try:
                    produce(destination, value, key, partition, None, None, at_ms, headers)
                except BufferError:
                    self._produce_later(
                        destination, value, key, partition, None, None, at_ms, headers
                    )
                count += 1

        return count

    def send_progress(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Sends records of the progress topic."""
        refused = self._refused_progress

        def report(error: KafkaError | None, _: Any) -> None:
            if error is not None and error.code() in _RECORD_CODES:
                refused.append(
                    f"the progress topic {topic} does not take a record: {error.str()}; let it, as "
                    "with a larger max.message.bytes"
                )

        with self._naming_progress_topic(), self._translating_errors():
            for key, value in records:
                try:
                    self._producer.produce(topic, value, key, 0, report)
                except BufferError:  # the messages before it are in the same queue
                    self._produce_later(topic, value, key, 0, report)

    def _produce_later(self, *record: Any) -> None:
        """Gives librdkafka a record as soon as its full queue has room.

        Input: the arguments of `produce`.
        Errors: KafkaAwayError if nothing goes; RecordRefusedError for a record that even the empty
        queue does not take; KafkaException.
        """
        began_at = time.monotonic()

        while True:
            is_empty = not len(self._producer)
            try:
                self._producer.produce(*record)
                return
            except BufferError as full:
                if is_empty:
                    error = KafkaError(
                        KafkaError.MSG_SIZE_TOO_LARGE, "it is far larger than record_bytes_max"
                    )
                    raise RecordRefusedError(error) from full

            waited_s = time.monotonic() - began_at
            if waited_s > self._timeout_s:
                raise KafkaAwayError(f"the destination took no record for {self._timeout_s:.0f} s")
            if waited_s > _STOPPED_ROOM_S and self._is_stopped():
                raise KafkaAwayError(
                    "the publisher is stopped, and the destination takes no record"
                )
            self._producer.poll(_ROOM_S)

    def commit(self) -> None:
        """Commits: readers see all that was sent since `begin`, or nothing.

        It is asked for in short steps. librdkafka waits for all records; those behind a refused one
        never are delivered, and only the next step says so.
        """
        deadline = time.monotonic() + _TRANSACTION_S

        with self._naming_progress_topic(), self._translating_errors():
            while True:
                try:
                    self._producer.commit_transaction(_POLL_S)
                    return
                except KafkaException as error:
                    is_timeout = error.args[0].code() == KafkaError._TIMED_OUT
                    if not is_timeout or time.monotonic() > deadline:
                        raise

    def abort(self) -> None:
        """Discards the records that were sent since `begin`."""
        with self._translating_errors():
            self._producer.purge()
            self._producer.abort_transaction(_TRANSACTION_S)

    def close(self) -> None:
        """Closes the producer: Kafka aborts an open transaction, or the next `init` does."""
        with suppress(KafkaException):
            self._producer.purge()
        with suppress(KafkaException), warnings.catch_warnings():
            # A producer that is fenced warns that it cannot abort its transaction: Kafka has.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._producer.close()

    def wait_for_partitions(self, destination: str, partitions: int) -> None:
        """Waits until the producer knows a topic's new partitions."""
        deadline = time.monotonic() + _TRANSACTION_S

        while True:
            with self._translating_errors():
                topics = self._producer.list_topics(destination, timeout=_TRANSACTION_S).topics

            if destination in topics and len(topics[destination].partitions) >= partitions:
                return

            if time.monotonic() > deadline:
                raise KafkaAwayError(f"Kafka does not tell of the new partitions of {destination}")
            time.sleep(_POLL_S)

    def find_refused(
        self, candidates: Iterable[AddressedRecord]
    ) -> tuple[AddressedRecord, str] | None:
        """Returns a record that the destination refuses, and the reason; None if it takes all.

        It is the first of those whose reports have come: another queue's can come later.

        The producer must have been made with `EACH_ALONE`. Readers see none of the records: the
        transaction is aborted.
        Errors: KafkaAwayError, FencedError if it has not answered for each of them.
        """
        refused: list[tuple[int, str]] = []  # index and reason
        failures: list[KafkaError] = []
        tried: list[AddressedRecord] = []

        self.begin()
        try:
            with self._translating_errors():
                for index, candidate in enumerate(candidates):
                    tried.append(candidate)
                    self._send_alone(candidate, index, refused, failures)
                    if refused:
                        break

                self._wait_for_reports(refused)
            if failures and not refused:
                raise _to_error(failures[0])
        except (RecordRefusedError, FencedError, KafkaAwayError):
            self._producer.poll(_POLL_S)  # calls `report`
            if not refused:
                raise
        finally:
            self.abort()

        if not refused:
            return None

        index, reason = min(refused)
        return tried[index], reason

    def _send_alone(
        self,
        addressed: AddressedRecord,
        index: int,
        refused: list[tuple[int, str]],
        failures: list[KafkaError],
    ) -> None:
        """Sends a record, and notes its failure when its report comes.

        Output: `refused` gets its index and the reason, `failures` any other error.
        """

        def report(error: KafkaError | None, _: Any) -> None:
            if error is None:
                return
            if error.code() in _RECORD_CODES:
                refused.append((index, error.str()))
            else:
                failures.append(error)

        topic, partition, (value, key, at_ms, headers) = addressed
        try:
            self._produce_later(topic, value, key, partition, report, None, at_ms, headers)
        except RecordRefusedError as error:
            refused.append((index, str(error)))
        self._producer.poll(0)

    def _wait_for_reports(self, refused: Sequence[tuple[int, str]]) -> None:
        """Waits until each record has its report, or one is refused. Errors: KafkaAwayError."""
        deadline = time.monotonic() + self._timeout_s
        while not refused and self._producer.flush(_POLL_S):
            if time.monotonic() > deadline:
                raise KafkaAwayError(
                    f"the destination did not answer for each record within {self._timeout_s:.0f} s"
                )

    @contextmanager
    def _naming_progress_topic(self) -> Iterator[None]:
        """Raises PublishError for a record that is refused, if it is one of the progress topic."""
        try:
            yield
        except RecordRefusedError as error:
            self._producer.poll(_POLL_S)  # calls `report`
            if self._refused_progress:
                raise PublishError(self._refused_progress[0]) from error
            raise

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise _to_error(self._cause(error.args[0])) from error

    def _cause(self, error: KafkaError) -> KafkaError:
        """Returns why a transaction takes no records any more, for an error that says only that.

        In such a state librdkafka does not begin a transaction either, and says why.
        """
        if error.code() not in (KafkaError._STATE, KafkaError._FATAL):
            return error

        try:
            self._producer.begin_transaction()
        except KafkaException as cause:
            return cause.args[0]  # type: ignore[no-any-return]
        return error


def _to_error(error: KafkaError) -> Exception:
    """Returns an error of librdkafka as one of ours."""
    code = error.code()

    if code in _FENCED_CODES:
        return FencedError(
            "another process has this publisher now, or its transaction took too long for Kafka"
        )
    if code in _RECORD_CODES:
        return RecordRefusedError(error)
    if code in _ACL_CODES:
        return KafkaRefusedError(
            f"the destination refuses this client a transaction: {error.str()}; `txlake acl print "
            "--role publisher` prints the commands that give a publisher its rights"
        )

    return KafkaAwayError(f"the destination did not take a transaction: {error.str()}")
