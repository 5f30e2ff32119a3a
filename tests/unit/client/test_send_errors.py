"""What a SendError says: refused, or not known, and what then becomes of the record."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.wait import wait_until
from txlake import (
    CheckedMessage,
    ClosedError,
    HalfMessage,
    LocalTransactionState,
    Message,
    Producer,
    ProducerOptions,
    SendError,
    TransactionListener,
    TransactionProducer,
    protocol,
)
from txlake._kafka import (
    HALF_IS_ASKED_ABOUT,
    KafkaSender,
    Reports,
    client_settings,
    failure_text,
    may_be_stored,
)
from txlake._operations import _Operation

NOWHERE = "127.0.0.1:1"


class Commits(TransactionListener):
    """A listener of local transactions that are not begun: no half is stored."""

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        raise AssertionError(message, arg)

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        raise AssertionError(message)


class Stored:
    """The record of a delivery report."""

    topic = staticmethod(lambda: "halves")

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


@pytest.mark.parametrize(
    ("code", "is_open"),
    [
        pytest.param(KafkaError._MSG_TIMED_OUT, True, id="nothing was heard in time"),
        pytest.param(KafkaError._PURGE_INFLIGHT, True, id="closed while Kafka had not answered"),
        pytest.param(KafkaError.REQUEST_TIMED_OUT, True, id="Kafka could not confirm it"),
        pytest.param(
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True, id="stored by too few replicas"
        ),
        pytest.param(KafkaError.MSG_SIZE_TOO_LARGE, False, id="too large"),
        pytest.param(KafkaError.TOPIC_AUTHORIZATION_FAILED, False, id="not allowed"),
        pytest.param(KafkaError.UNKNOWN_TOPIC_OR_PART, False, id="no such topic"),
        pytest.param(KafkaError._UNKNOWN_PARTITION, False, id="no such partition"),
        pytest.param(KafkaError._PURGE_QUEUE, False, id="closed before it was sent"),
    ],
)
def test_a_report_leaves_open_whether_the_record_is_stored_or_does_not(
    code: int, is_open: bool
) -> None:
    error = KafkaError(code)
    assert may_be_stored(error) is is_open
    reports = Reports(2)
    reports.take(0, error, Stored(-1))  # type: ignore[arg-type]
    reports.take(1, None, Stored(7))  # type: ignore[arg-type]
    reports.wait(0)
    assert (reports.is_open, reports.stored()) == (is_open, [7])
    text = failure_text("the half was not", str(reports.failure), is_open, HALF_IS_ASKED_ABOUT)
    assert ("may be stored" in text) is is_open
    assert ("asks the producer group" in text) is is_open
    assert text.startswith(f"the half was not {'confirmed' if is_open else 'stored'}: KafkaError")


def test_a_record_that_was_refused_and_one_that_is_not_known_leave_it_open() -> None:
    reports = Reports(2)
    reports.fail(0, "too large")
    reports.take(1, KafkaError(KafkaError._MSG_TIMED_OUT), None)  # type: ignore[arg-type]
    assert (reports.failure, reports.is_open) == ("too large", True)


def test_a_record_without_offset_or_without_report_may_be_stored() -> None:
    reports = Reports(1)
    reports.take(0, None, Stored(None))  # type: ignore[arg-type]
    assert (reports.failure, reports.is_open) == ("no offset in the delivery report", True)
    silent = Reports(3)
    silent.wait(0)
    assert (silent.failure, silent.is_open) == ("3 delivery reports are missing", True)


def test_a_message_that_timed_out_may_be_delivered_and_the_error_says_so() -> None:
    client: dict[str, Any] = {"log_level": 0}
    options = ProducerOptions(send_timeout_ms=300, close_timeout_ms=300)
    with (
        Producer(NOWHERE, client=client, options=options) as producer,
        pytest.raises(SendError) as failure,
    ):
        producer.send(Message("orders", b"x"))
    said = str(failure.value)
    assert said.startswith("1 message, not all confirmed: ")
    assert said.endswith("; it may be stored all the same: then the job delivers it")


def test_each_transaction_that_a_close_gives_up_is_said_to_its_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KafkaSender, "partition_count", lambda *_: 4)
    done: list[Any] = []

    def on_done(result: Any) -> None:
        time.sleep(0.01)  # close() waits for a second of them
        done.append(result)

    options = ProducerOptions(close_timeout_ms=100)
    listener = Commits()
    with TransactionProducer(
        NOWHERE, "shop", listener, client={"log_level": 0}, options=options
    ) as producer:
        for _ in range(300):
            producer.send_pipelined(Message("orders", b"x"), on_done=on_done)

    wait_until(lambda: len(done) == 300, "callbacks", seen=lambda: len(done))
    assert all(isinstance(result, SendError) for result in done)


def test_a_client_with_a_fatal_error_is_closed_all_the_same() -> None:
    """As when Kafka refuses the right to be idempotent after a record was handed over."""
    sender = KafkaSender(client_settings(NOWHERE, None), ProducerOptions())
    asked: list[str] = []

    class Refused:
        def flush(self, _timeout_s: float) -> int:
            asked.append("flush")
            raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, fatal=True))

        def purge(self) -> None:
            asked.append("purge")

        poll = staticmethod(lambda _timeout_s: 0)

    sender._producer = Refused()
    sender.close(1.0)
    assert asked == ["flush", "purge", "flush"]
    assert not sender._thread.is_alive()
    with pytest.raises(ClosedError):
        sender.send("halves", 0, b"", [], lambda *_: None)


def test_all_ends_of_an_operation_hear_of_it_though_a_log_handler_raises() -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log's disk is full")

    def fail(_is_sent: bool) -> None:
        raise ValueError("the application's own")

    heard: list[bool] = []
    operation = _Operation(protocol.COMMIT, 0.0, on_sent=[heard.append, fail, heard.append])
    logger, handler = logging.getLogger("txlake.operations"), Raises()
    logger.addHandler(handler)
    try:
        operation.report(KafkaError(KafkaError._MSG_TIMED_OUT), None)
    finally:
        logger.removeHandler(handler)
    assert heard == [False, False]
