"""Transactions through a real broker: what is sent, in which order, and what when a step fails."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.local_broker.broker import Broker
from tests.support.scripted_producer import ScriptedListener, make_producer
from tests.support.transaction_topics import TransactionTopics
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    HalfMessage,
    LocalTransactionState,
    Message,
    SendError,
    TransactionProducer,
    TransactionSendResult,
    UnknownTopicError,
    protocol,
)

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
MESSAGE = Message("orders", b"one")
pytestmark = pytest.mark.usefixtures("patient_producers")
NOT_CONFIRMED = (
    "^the half was not confirmed: KafkaError.*; it may be stored all the same: then the job asks "
    "the producer group how its transaction ended$"
)


@pytest.fixture
def topics(broker: Broker, unique: Callable[[str], str]) -> TransactionTopics:
    return TransactionTopics(broker.bootstrap_servers, unique("transactions"))


@pytest.fixture
def listener() -> ScriptedListener:
    return ScriptedListener()


def test_the_half_is_in_kafka_before_the_local_transaction_runs(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    stored: list[Any] = []

    def look(half: HalfMessage) -> LocalTransactionState:
        stored.extend(topics.records(topics.half))
        assert (half.queue_id, half.queue_offset) == (stored[0].partition, stored[0].offset)
        assert topics.records(topics.op) == []
        return COMMIT

    with make_producer(topics, listener) as producer:
        result = producer.send_message_in_transaction(MESSAGE, look)
    assert (result.local_state, result.remark, result.operation_sent) == (COMMIT, "", True)
    assert len(stored) == 1
    assert stored[0].headers[protocol.UNIQ_KEY] == result.transaction_id


def test_half_and_operation_have_the_wire_form(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    message = Message("orders", b"one", keys="k", properties={"b": "1", "a": "ä"}, delay_level=3)
    with make_producer(topics, listener) as producer:
        result = producer.send_message_in_transaction(message, ROLLBACK)
    (half,), (op,) = topics.records(topics.half), topics.records(topics.op)
    assert half.body == b"one"
    assert half.names == [
        "TRAN_MSG",
        "PGROUP",
        "UNIQ_KEY",
        "REAL_TOPIC",
        "KEYS",
        "DELAY",
        "BORN_TIMESTAMP",
        "TXV",
        "b",
        "a",
    ]
    assert half.headers["DELAY"] == "3"
    assert half.headers["a"] == "ä"
    assert abs(int(half.headers["BORN_TIMESTAMP"]) - time.time() * 1000) < 60_000
    assert (op.partition, op.body) == (half.partition, b"%d," % half.offset)
    assert op.names == ["TAGS", "PGROUP", "TRAN_TYPE", "UNIQ_KEY", "TXV"]
    assert op.headers == {
        "TAGS": "d",
        "PGROUP": "shop",
        "TRAN_TYPE": "12",
        "UNIQ_KEY": result.transaction_id,
        "TXV": "1",
    }


def raise_error(_half: HalfMessage) -> LocalTransactionState:
    raise OSError("disk full")


@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (UNKNOWN, ""),
        (None, "not a LocalTransactionState: NoneType"),
        ("COMMIT", "not a LocalTransactionState: str"),
        (True, "not a LocalTransactionState: bool"),
        (raise_error, "OSError: disk full"),
    ],
)
def test_what_is_no_answer_is_unknown_and_is_said(
    topics: TransactionTopics, listener: ScriptedListener, answer: Any, remark: str
) -> None:
    with make_producer(topics, listener) as producer:
        result = producer.send_message_in_transaction(MESSAGE, answer)
        done: list[Any] = []
        producer.send_pipelined(MESSAGE, answer, done.append)
        assert producer.flush(DEADLINE_S) == 0
    assert (result.local_state, result.remark, result.operation_sent) == (UNKNOWN, remark, True)
    assert (done[0].local_state, done[0].remark) == (UNKNOWN, remark)
    for op in topics.records(topics.op):
        assert op.headers["TRAN_TYPE"] == "0"
        assert op.headers.get("REMARK", "") == remark


def test_a_half_too_large_for_the_broker_runs_no_local_transaction(
    broker: Broker, unique: Callable[[str], str], listener: ScriptedListener
) -> None:
    topics = TransactionTopics(broker.bootstrap_servers, unique("small"))
    topics.half = unique("small-half")
    topics.make(topics.half, 1, **{"max.message.bytes": "2000"})
    large = Message("orders", b"x" * 4000)
    done: list[Any] = []
    with make_producer(topics, listener) as producer:
        with pytest.raises(SendError, match=r"not stored: KafkaError.*SIZE") as refused:
            producer.send_message_in_transaction(large, COMMIT)
        transaction_id = producer.send_pipelined(large, COMMIT, done.append)
        producer.flush(DEADLINE_S)
        producer.send_pipelined(large, COMMIT)
        with pytest.raises(SendError, match="1 transaction could not be begun"):
            producer.flush(DEADLINE_S)
    assert listener.halves == []
    assert isinstance(done[0], SendError)
    assert done[0].transaction_id == transaction_id
    for error in (refused.value, done[0]):
        assert "may be stored" not in str(error)
    assert topics.records(topics.op) == []


def test_of_a_set_that_could_not_be_stored_whole_the_stored_part_is_rolled_back(
    broker: Broker, unique: Callable[[str], str], listener: ScriptedListener
) -> None:
    topics = TransactionTopics(broker.bootstrap_servers, unique("small"))
    topics.half = unique("small-half")
    topics.make(topics.half, 1, **{"max.message.bytes": "2000"})
    # Not one batch: the broker refuses batches whole.
    with make_producer(topics, listener, client={"batch.num.messages": 1}) as producer:
        with pytest.raises(SendError) as failure:
            producer.send_messages_in_transaction([MESSAGE, Message("orders", b"x" * 4000)], COMMIT)
        producer.flush(DEADLINE_S)
    assert listener.halves == []
    (op,) = topics.records(topics.op)
    assert (op.headers["TRAN_TYPE"], op.half_offsets) == ("12", [0])
    assert op.headers["UNIQ_KEY"] == failure.value.transaction_id


def test_a_missing_half_topic_runs_no_local_transaction(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    topics.half = "nowhere"
    with make_producer(topics, listener) as producer:
        with pytest.raises(UnknownTopicError, match="nowhere"):
            producer.send_message_in_transaction(MESSAGE, COMMIT)
        with pytest.raises(UnknownTopicError, match="nowhere"):
            producer.send_pipelined(MESSAGE, COMMIT)
        assert producer.flush(1) == 0
    assert listener.halves == []


def result_of(producer: TransactionProducer, arg: Any) -> TransactionSendResult | None:
    """Send a message in a transaction; None if the half was not confirmed in time."""
    try:
        return producer.send_message_in_transaction(MESSAGE, arg)
    except SendError:
        return None


def test_a_broker_that_goes_away_fails_the_half_or_leaves_the_end_to_a_check(
    tmp_path: Any,
    unique: Callable[[str], str],
    listener: ScriptedListener,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Broker(tmp_path / "own") as own:
        topics = TransactionTopics(own.bootstrap_servers, unique("gone"))
        topics.make(topics.check_prefix + "shop", 1)
        producer = make_producer(topics, listener, send_timeout_ms=3_000, close_timeout_ms=3_000)
        wait_until(lambda: result_of(producer, COMMIT), "a half within its short send_timeout_ms")

        # Its third client, the consumer of checks, is there once a check has come.
        topics.ask("shop", (0, "9"), "t9")
        wait_until(lambda: listener.checks, "no check was read")

        def stop_broker(_half: HalfMessage) -> LocalTransactionState:
            own.stop()
            return COMMIT

        result = wait_until(lambda: result_of(producer, stop_broker), "another one")
        assert (result.local_state, result.operation_sent) == (COMMIT, False)
        ran = len(listener.halves)
        with pytest.raises(SendError, match=NOT_CONFIRMED):
            producer.send_message_in_transaction(MESSAGE, COMMIT)
        done: list[Any] = []
        producer.send_pipelined(MESSAGE, COMMIT, done.append)
        assert producer.flush(DEADLINE_S) == 0
        assert re.match(NOT_CONFIRMED, str(done[0]))
        assert len(listener.halves) == ran
        started = time.monotonic()
        producer.close()
        assert time.monotonic() - started < 60

    # Each line of Kafka's clients went through the one log, which leaves out their names; the
    # consumer of checks wrote none to stderr, where only the test's own clients write.
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("txlake")]
    assert [line for line in lines if "[rdkafka#" in line] == []
    assert "rdkafka#consumer" not in capfd.readouterr().err


def test_a_set_goes_to_one_half_queue_and_ends_in_one_operation(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    messages = [
        Message("orders", b"0", queue_id=1),
        Message("points", b"1", queue_id=2),
        Message("orders", b"2"),
    ]
    with make_producer(topics, listener, operation_ends_max=2) as producer:
        result = producer.send_messages_in_transaction(messages, COMMIT)
    halves, (op,) = topics.records(topics.half), topics.records(topics.op)
    assert {half.partition for half in halves} == {result.queue_id}
    assert [(half.headers["TRAN_SIZE"], half.headers["TRAN_SEQ"]) for half in halves] == [
        ("3", "0"),
        ("3", "1"),
        ("3", "2"),
    ]
    assert {half.headers["UNIQ_KEY"] for half in halves} == {result.transaction_id}
    assert op.half_offsets == list(result.queue_offsets) == [half.offset for half in halves]
    assert op.headers["UNIQ_KEY"] == ",".join([result.transaction_id] * 3)
    assert len(listener.halves) == 1
    assert listener.halves[0].messages == tuple(messages)


def test_without_a_listener_the_call_brings_what_to_run(topics: TransactionTopics) -> None:
    with make_producer(topics, None) as producer:
        result = producer.send_message_in_transaction(
            MESSAGE, "arg", execute=lambda _half, arg: COMMIT if arg == "arg" else ROLLBACK
        )
    assert result.local_state is COMMIT


@pytest.mark.parametrize("is_in_time", [True, False])
def test_close_finishes_the_transaction_of_another_thread_or_leaves_it_at_its_timeout(
    topics: TransactionTopics, listener: ScriptedListener, is_in_time: bool
) -> None:
    has_begun, go_on = threading.Event(), threading.Event()

    def run(_half: HalfMessage) -> LocalTransactionState:
        has_begun.set()
        go_on.wait(DEADLINE_S)
        return COMMIT

    results: list[TransactionSendResult] = []
    producer = make_producer(
        topics,
        listener,
        close_timeout_ms=int(DEADLINE_S * 1_000) if is_in_time else 100,
        send_timeout_ms=int(2 * DEADLINE_S * 1_000),
    )
    sending = threading.Thread(
        target=lambda: results.append(producer.send_message_in_transaction(MESSAGE, run))
    )
    closing = threading.Thread(target=producer.close)
    sending.start()
    assert has_begun.wait(DEADLINE_S)
    closing.start()
    closing.join(2.0 if is_in_time else DEADLINE_S)
    assert closing.is_alive() is is_in_time

    go_on.set()
    sending.join(DEADLINE_S)  # less than send_timeout_ms
    closing.join(DEADLINE_S)
    assert [(result.local_state, result.operation_sent) for result in results] == [
        (COMMIT, is_in_time)
    ]
    assert len(topics.records(topics.op)) == is_in_time


def test_a_local_transaction_that_closes_its_producer_waits_for_nothing(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    long_ms = int(DEADLINE_S * 1_000)
    producer = make_producer(topics, listener, close_timeout_ms=long_ms, send_timeout_ms=long_ms)

    def close(_half: HalfMessage) -> LocalTransactionState:
        producer.close()
        return COMMIT

    started = time.monotonic()
    result = producer.send_message_in_transaction(MESSAGE, close)
    assert time.monotonic() - started < DEADLINE_S / 2
    assert (result.local_state, result.operation_sent) == (COMMIT, False)
