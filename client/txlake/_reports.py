"""Kafka's delivery reports, and what they say of a record."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from confluent_kafka import KafkaError, Message

from txlake._kafka import KafkaSender
from txlake.errors import SendError
from txlake.protocol import Headers

# Reports that leave open whether Kafka has the record: Kafka did not answer, or not in time. After
# any other error Kafka does not have it.
_OPEN = frozenset((
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL, KafkaError._FAIL,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION, KafkaError.UNKNOWN,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
))  # fmt: skip
HALF_IS_ASKED_ABOUT = "the job asks the producer group how its transaction ended"
# librdkafka reports each record by delivery.timeout.ms; the report can arrive this much later.
REPORT_S = 5.0


def may_be_stored(error: KafkaError | None) -> bool:
    """Returns whether Kafka can have a record that was reported so, or without an offset."""
    return error is None or error.code() in _OPEN


def why_not(error: KafkaError | None, record: Message) -> str:
    """Returns why a record was not stored; a right that is missing is named."""
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{error}: Kafka refuses this client WRITE on topic {record.topic()}"
    return str(error or "no offset in the delivery report")


def failure_text(what: str, failure: str, is_open: bool, then: str) -> str:
    """Returns the text of a SendError; `then` is what becomes of a record that Kafka has."""
    if not is_open:
        return f"{what} stored: {failure}"
    return f"{what} confirmed: {failure}; it may be stored all the same: then {then}"


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
            self.fail(position, why_not(error, record), may_be_stored(error))
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


def send_all(
    sender: KafkaSender,
    topic: str,
    records: Sequence[tuple[int, bytes | None, Headers]],
    timeout_ms: int,
) -> Reports:
    """Sends records together, and waits for their reports. Input: partitions, bodies, headers."""
    reports = Reports(len(records))
    for position, (partition, body, headers) in enumerate(records):
        try:
            sender.send(topic, partition, body, headers, partial(reports.take, position))
        except SendError as error:
            reports.fail(position, str(error))
    reports.wait(timeout_ms / 1000 + REPORT_S)
    return reports
