"""A Kafka producer with a polling thread of its own, and the meaning of Kafka's delivery reports.

Both kinds of producers use it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from txlake._client_log import CLIENT_LOGGER
from txlake.errors import ClosedError, SendError, UnknownTopicError
from txlake.options import ProducerOptions
from txlake.protocol import Headers, batch_bytes_max

log = logging.getLogger("txlake.kafka")

_ClientT = TypeVar("_ClientT", Producer, Consumer)
DeliveryReport = Callable[[KafkaError | None, Message], None]
# The guarantees rest on these; a user's `client` settings may not change them.
_FIXED = {"acks": "all", "enable.idempotence": True}
# The SDK asks for each record's report itself; a consumer of checks takes no `on_delivery`.
_REPORTS = ("on_delivery", "delivery.report.only.error")
_METADATA_AGE_MAX_S = 60.0
_METADATA_TIMEOUT_S = 5.0
_POLL_S = 0.1
# Reports that leave open whether Kafka has the record: Kafka did not answer, or not in time. After
# any other error Kafka does not have it.
_OPEN = frozenset(
    (
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
        KafkaError._FAIL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.UNKNOWN,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
)
HALF_IS_ASKED_ABOUT = "the job asks the producer group how its transaction ended"
# librdkafka reports each record by delivery.timeout.ms; the report can arrive this much later.
REPORT_S = 5.0


def client_settings(bootstrap_servers: str, client: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the user's Kafka settings with the server list.

    Errors: ValueError naming a setting that the SDK must own, or what is no setting.
    """
    if not isinstance(bootstrap_servers, str) or not bootstrap_servers:
        raise ValueError(f"bootstrap_servers {bootstrap_servers!r}: host:port, several with commas")
    if client is not None and not isinstance(client, Mapping):
        raise ValueError(f"client {client!r}: a dict of settings")

    settings = dict(client or {})
    for name in ("bootstrap.servers", "group.id", "enable.auto.commit", *_FIXED, *_REPORTS):
        if name in settings:
            raise ValueError(f"client[{name!r}] = {settings[name]!r}: the SDK sets this itself")
    return {"bootstrap.servers": bootstrap_servers, **settings}


def make_client(kind: type[_ClientT], settings: Mapping[str, Any]) -> _ClientT:
    """Returns a client of Kafka. Errors: ValueError with what its library says of a setting."""
    try:
        return kind(dict(settings), logger=CLIENT_LOGGER)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise ValueError(f"the settings of Kafka's client: {reason.strip()}") from error


class KafkaSender:
    """A sender of records. A thread of its own calls delivery reports, then `after_poll`.

    Errors: ValueError for a setting that Kafka's client does not take.
    """

    def __init__(self, settings: Mapping[str, Any], options: ProducerOptions) -> None:
        self._timeout_s = options.send_timeout_ms / 1000
        self._last_error = ""  # the client's latest error

        # Any: the client takes a list of (str, bytes), its annotations do not.
        self._producer: Any = make_client(
            Producer,
            {
                "linger.ms": options.half_linger_ms,
                "delivery.timeout.ms": options.send_timeout_ms,
                # In bytes: by default Kafka takes batches of up to 1 MiB. A larger record goes out
                # alone.
                "batch.size": 1_000_000,
                "message.max.bytes": batch_bytes_max(options.message_bytes_max),
                "queue.buffering.max.messages": 500_000,
                "error_cb": self._note,
                **settings,
                **_FIXED,
            },
        )

        self._partitions: dict[str, tuple[int, float]] = {}
        self._is_closed = False

        self.after_poll: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._poll, name="txlake-sender", daemon=True)
        self._thread.start()

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = f" ({error.str()})"

    def _poll(self) -> None:
        while not self._is_closed:
            try:
                if self._producer.poll(_POLL_S):
                    self.after_poll()
            except BaseException:  # a report has raised it; the thread goes on
                log.exception("a delivery report failed")

    def send(
        self,
        topic: str,
        partition: int,
        body: bytes | None,
        headers: Headers,
        report: DeliveryReport,
    ) -> None:
        """Hands one record to Kafka's client; waits while its buffer is full.

        Errors: SendError when the client cannot take it, ClosedError after `close()`.
        """
        deadline = 0.0
        while True:
            if self._is_closed:  # perhaps since the last try: nobody sends what is buffered now
                raise ClosedError("the producer is closed")
            try:
                self._producer.produce(
                    topic, body, partition=partition, headers=headers, on_delivery=report
                )
                return
            except BufferError as error:
                deadline = deadline or time.monotonic() + self._timeout_s
                # Its own thread would wait for itself.
                if time.monotonic() > deadline or threading.current_thread() is self._thread:
                    raise SendError(f"{topic}: {error}") from error
                time.sleep(0.005)
            except KafkaException as error:
                raise SendError(f"{topic}: {error.args[0]}") from error

    def send_all(self, topic: str, records: Sequence[tuple[int, bytes | None, Headers]]) -> Reports:
        """Sends records together, and waits for their reports.

        Input: `records`: the partition, body and headers of each. Errors: ClosedError.
        """
        reports = Reports(len(records))
        for position, (partition, body, headers) in enumerate(records):
            try:
                self.send(topic, partition, body, headers, partial(reports.take, position))
            except SendError as error:
                reports.fail(position, str(error))

        reports.wait(self._timeout_s + REPORT_S)
        return reports

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions a topic had, at most a minute ago.

        Errors: UnknownTopicError; SendError when no broker answers, and none did before.
        """
        count, read_at = self._partitions.get(topic, (0, 0.0))
        if count and time.monotonic() - read_at < _METADATA_AGE_MAX_S:
            return count

        try:
            # All topics are listed: a request for one name can create the topic.
            topics = self._producer.list_topics(timeout=_METADATA_TIMEOUT_S).topics
        except KafkaException as error:
            if not count:
                raise SendError(
                    f"{topic}: no broker answers: {error.args[0].str()}{self._last_error}"
                ) from error
        else:
            if topic not in topics or not topics[topic].partitions:
                raise UnknownTopicError(
                    f"{topic}: Kafka has no such topic; create it first. A topic that this client "
                    "has no right to looks the same: it needs WRITE"
                )
            count = len(topics[topic].partitions)

        self._partitions[topic] = (count, time.monotonic())
        return count

    def close(self, timeout_s: float) -> None:
        """Sends the buffered records, gives up the rest after the timeout, and stops the thread."""
        if self._is_closed:
            return

        if not self._has_sent_all(timeout_s):
            self._producer.purge()
            self._has_sent_all(_POLL_S)

        self._is_closed = True
        self._thread.join(timeout=1.0)

    def _has_sent_all(self, timeout_s: float) -> bool:
        """Waits until nothing is buffered; after a fatal error Kafka's client raises it here."""
        try:
            return bool(self._producer.flush(max(timeout_s, 0.0)) == 0)
        except KafkaException:
            return False  # what is buffered gets its report; whoever sent it hears of the error


def may_be_stored(error: KafkaError | None) -> bool:
    """Returns whether Kafka can have a record that was reported so, or without an offset."""
    return error is None or error.code() in _OPEN


def failure_reason(error: KafkaError | None, record: Message) -> str:
    """Returns why a record was not stored; a right that is missing is named."""
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{error}: Kafka refuses this client WRITE on topic {record.topic()}"
    return str(error or "no offset in the delivery report")


def failure_text(subject: str, failure: str, is_open: bool, then: str) -> str:
    """Returns the text of a SendError; `then`: what happens next to a record that Kafka has."""
    if not is_open:
        return f"{subject} stored: {failure}"
    return f"{subject} confirmed: {failure}; it may be stored all the same: then {then}"


class Reports:
    """The reports of several records, in the order in which they were sent."""

    def __init__(self, count: int) -> None:
        self._offsets: list[int | None] = [None] * count
        self._missing = count
        self._changed = threading.Condition()
        self.failure: str | None = None
        self.is_open = False  # whether Kafka can have one of the records that failed

    def take(self, position: int, error: KafkaError | None, record: Message) -> None:
        """Takes Kafka's report about one record."""
        offset = None if error is not None else record.offset()
        if offset is None or offset < 0:
            self.fail(position, failure_reason(error, record), may_be_stored(error))
        else:
            self._take(position, offset, None)

    def fail(self, position: int, failure: str, is_open: bool = False) -> None:
        """Notes that one record was not stored, or (`is_open`) is not known to be."""
        self.is_open = self.is_open or is_open
        self._take(position, None, failure)

    def sent(self, is_sent: bool) -> None:
        """Notes, when only one record is waited for, whether Kafka has it."""
        self._take(0, None, None if is_sent else "not sent")

    def wait(self, timeout_s: float) -> None:
        """Waits for all reports; those that are missing at the end count as failed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._missing == 0, timeout_s):
                self.failure = f"{self._missing} delivery reports are missing"
                self.is_open = True

    def stored(self) -> list[int]:
        """Returns the offsets of the records that were stored."""
        with self._changed:
            return [offset for offset in self._offsets if offset is not None]

    def _take(self, position: int, offset: int | None, failure: str | None) -> None:
        with self._changed:
            self._offsets[position] = offset
            self._missing -= 1
            self.failure = self.failure or failure
            if self._missing == 0:
                self._changed.notify_all()
