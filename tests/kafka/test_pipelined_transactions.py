"""Many transactions in flight keep their order and their bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.local_broker.broker import Broker
from tests.support.scripted_producer import ScriptedListener, make_producer
from tests.support.transaction_topics import TransactionTopics
from tests.support.wait import DEADLINE_S
from txlake import (
    HalfMessage,
    LocalTransactionState,
    Message,
    SendError,
    TransactionSendResult,
    protocol,
)

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
MESSAGE = Message("orders", b"one")
pytestmark = pytest.mark.usefixtures("patient_producers")


@pytest.fixture
def topics(broker: Broker, unique: Callable[[str], str]) -> TransactionTopics:
    return TransactionTopics(broker.bootstrap_servers, unique("transactions"))


@pytest.fixture
def listener() -> ScriptedListener:
    return ScriptedListener()


def test_messages_for_one_real_queue_share_a_half_queue_and_others_spread(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    with make_producer(topics, listener) as producer:
        for number in range(40):
            producer.send_pipelined(Message("orders", b"asked", queue_id=number % 2), COMMIT)
            producer.send_pipelined(Message("orders", b"free"), COMMIT)
            producer.send_pipelined(Message("orders", b"free"), COMMIT)
        assert producer.flush(DEADLINE_S) == 0
    halves = topics.records(topics.half)
    for queue_id in ("0", "1"):
        asked = {half.partition for half in halves if half.headers.get("REAL_QID") == queue_id}
        assert len(asked) == 1
    assert {half.partition for half in halves if half.body == b"free"} == {0, 1, 2, 3}


def test_ends_are_collected_and_keep_their_order(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    answers = [COMMIT, COMMIT, COMMIT, ROLLBACK, COMMIT, UNKNOWN, COMMIT]
    results: list[TransactionSendResult] = []
    # So long that a slow machine cuts few of them short.
    with make_producer(topics, listener, operation_linger_ms=2_000) as producer:
        for number in range(700):
            answer = answers[number // 5 % len(answers)]
            producer.send_pipelined(MESSAGE, answer, results.append)  # type: ignore[arg-type]
        assert producer.flush(DEADLINE_S) == 0
    ops = topics.records(topics.op)
    assert len(ops) < 350
    states = {
        (result.queue_id, result.queue_offset): (result.local_state.value, result.transaction_id)
        for result in results
    }
    assert len(states) == 700
    for partition in range(4):
        mine = [op for op in ops if op.partition == partition]
        offsets = [offset for op in mine for offset in op.half_offsets]
        assert offsets == sorted(offsets), "ends of one half queue in the order of the halves"
        for op in mine:
            ids = op.headers["UNIQ_KEY"].split(",")
            decision = protocol.DECISIONS[op.headers["TRAN_TYPE"]]
            for offset, transaction_id in zip(op.half_offsets, ids, strict=True):
                assert states[partition, offset] == (decision, transaction_id)


def test_what_is_in_flight_is_bounded(
    topics: TransactionTopics, listener: ScriptedListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def hold(_half: HalfMessage) -> LocalTransactionState:
        go_on.wait(DEADLINE_S)
        return COMMIT

    with make_producer(topics, listener, in_flight_max=3) as producer:
        for _ in range(3):
            producer.send_pipelined(MESSAGE, hold)
        monkeypatch.setattr(producer, "_timeout_s", 0.5)  # of a call, not of a half to Kafka
        with pytest.raises(SendError, match="3 transactions in flight"):
            producer.send_pipelined(MESSAGE, hold)
        assert producer.flush(0.05) == 3
        go_on.set()
        assert producer.flush(DEADLINE_S) == 0
        producer.send_pipelined(MESSAGE, COMMIT)
        assert producer.flush(DEADLINE_S) == 0


def test_a_callback_may_send_and_may_fail(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    results: list[Any] = []
    with make_producer(topics, listener, in_flight_max=1) as producer:

        def send_another(result: TransactionSendResult | SendError) -> None:
            results.append(result)
            if len(results) < 3:
                producer.send_pipelined(MESSAGE, COMMIT, send_another)
            raise RuntimeError("the application's callback")

        producer.send_pipelined(MESSAGE, COMMIT, send_another)
        assert producer.flush(DEADLINE_S) == 0
    assert [result.local_state for result in results] == [COMMIT] * 3


def test_several_threads_run_local_transactions_and_keep_each_queues_order(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    ran: list[tuple[int, int]] = []

    def note(half: HalfMessage) -> LocalTransactionState:
        ran.append((half.queue_id, half.queue_offset))
        return COMMIT

    with make_producer(topics, listener, local_transaction_threads=3) as producer:
        for _ in range(300):
            producer.send_pipelined(MESSAGE, note)
        assert producer.flush(DEADLINE_S) == 0
    for queue_id in range(4):
        offsets = [offset for queue, offset in ran if queue == queue_id]
        assert offsets == sorted(offsets)
    assert len(ran) == 300


def test_close_finishes_what_is_in_flight(
    topics: TransactionTopics, listener: ScriptedListener
) -> None:
    producer = make_producer(topics, listener)
    for _ in range(500):
        producer.send_pipelined(MESSAGE, COMMIT)
    producer.close()
    ops = topics.records(topics.op)
    assert sum(len(op.half_offsets) for op in ops) == 500


@pytest.mark.parametrize("error", [SystemExit(5), asyncio.CancelledError(), GeneratorExit()])
def test_whatever_a_local_transaction_or_callback_raises_the_others_go_on(
    topics: TransactionTopics,
    listener: ScriptedListener,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    results: list[Any] = []

    def fail(_: object) -> LocalTransactionState:
        raise error

    with make_producer(topics, listener) as producer:
        for number in range(20):
            producer.send_pipelined(MESSAGE, fail if number == 3 else COMMIT, results.append)
        producer.send_pipelined(MESSAGE, COMMIT, fail)
        assert producer.flush(DEADLINE_S) == 0

    states = [result.local_state for result in results]
    assert sorted(states, key=str) == sorted([COMMIT] * 19 + [UNKNOWN], key=str)
    assert sum(len(op.half_offsets) for op in topics.records(topics.op)) == 21

    warnings = [r.getMessage() for r in caplog.records if "or callbacks failed" in r.getMessage()]
    assert warnings == [
        "2 local transactions or callbacks failed; "
        "the job asks the group about a transaction without an end"
    ]
    traced = [r for r in caplog.records if r.exc_info and r.exc_info[1] is error]
    assert len(traced) == 2
