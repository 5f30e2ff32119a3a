"""The fake that applications test with behaves as the real producer."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    MessageError,
    NoListenerError,
    Producer,
    SendError,
    TransactionListener,
    TransactionProducer,
)
from txlake.testing import FakeTransactionProducer

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
MESSAGE = Message("orders", b"one")


class Orders(TransactionListener):
    """Keep orders in memory; `arg` says what to do."""

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        if arg == "fail":
            raise OSError("disk full")
        if arg == "refuse":
            return ROLLBACK
        self.kept.add(message.transaction_id)
        return COMMIT

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        return COMMIT if message.transaction_id in self.kept else ROLLBACK


def test_committed_and_rolled_back_messages_are_remembered() -> None:
    producer = FakeTransactionProducer(Orders())
    assert producer.send_message_in_transaction(MESSAGE).local_state is COMMIT
    assert producer.send_message_in_transaction(MESSAGE, "refuse").local_state is ROLLBACK
    assert (producer.committed, producer.rolled_back, producer.pending) == (
        [MESSAGE],
        [MESSAGE],
        [],
    )


@pytest.mark.parametrize(
    ("send", "said"),
    [
        (
            "send_message_in_transaction",
            "a txlake.Message, not bytes: Message(topic, body)",
        ),
        ("send_messages_in_transaction", "a tuple of txlake.Message, not bytes"),
        ("send_pipelined", "expected a txlake.Message, not bytes"),
        ("send", "expected a txlake.Message, not bytes"),
        ("send_all", "a tuple of txlake.Message, not bytes"),
    ],
)
def test_what_is_no_message_is_said_before_anything_is_sent(send: str, said: str) -> None:
    kafka = "127.0.0.1:1"
    producers = (
        FakeTransactionProducer(Orders()),
        TransactionProducer(kafka, "shop"),
        Producer(kafka),
    )
    asked = [producer for producer in producers if hasattr(producer, send)]
    assert asked
    for producer in asked:
        with pytest.raises(MessageError, match=re.escape(said)):
            getattr(producer, send)(b"x")
    for producer in producers:
        producer.close()


def test_an_execute_that_cannot_be_called_sends_nothing() -> None:
    producer = FakeTransactionProducer()
    with pytest.raises(TypeError, match="execute: expected a function, not int"):
        producer.send_message_in_transaction(MESSAGE, execute=5)  # type: ignore[arg-type]
    assert producer.halves == []


def test_a_half_that_fails_runs_no_local_transaction() -> None:
    listener = Orders()
    producer = FakeTransactionProducer(listener)
    producer.fail_next_send = True
    with pytest.raises(SendError):
        producer.send_message_in_transaction(MESSAGE)
    assert listener.kept == set()
    assert producer.halves == []


def test_a_lost_operation_is_finished_by_a_check() -> None:
    producer = FakeTransactionProducer(Orders())
    producer.lose_next_operation = True
    result = producer.send_message_in_transaction(MESSAGE)
    assert not result.operation_sent
    assert producer.pending == [MESSAGE]
    assert producer.check() == [COMMIT]
    assert producer.committed == [MESSAGE]


def test_an_exception_is_unknown_until_a_check() -> None:
    producer = FakeTransactionProducer(Orders())
    result = producer.send_message_in_transaction(MESSAGE, "fail")
    assert (result.local_state, result.remark) == (UNKNOWN, "OSError: disk full")
    assert producer.check() == [ROLLBACK]
    assert producer.check(result.transaction_id) == [ROLLBACK]
    assert producer.rolled_back == [MESSAGE]


class TextlessError(Exception):
    """An error whose text fails."""

    def __str__(self) -> str:
        return "order " + self.args[0]  # a number


class Lazy:
    """An answer that finds out late what it is, and cannot; it cannot be shown, either."""

    def __init__(self, kind: type | None = None) -> None:
        self._kind = kind

    @property
    def __class__(self) -> type:
        if self._kind is None:
            raise RuntimeError("outside of a request")
        return self._kind

    def __repr__(self) -> str:
        raise RuntimeError("outside of a request")


@pytest.mark.parametrize(
    ("make", "remark", "logged"),
    [
        (
            partial(TextlessError, 7),
            "TextlessError: <TextlessError without a text: TypeError>",
            "a listener failed",
        ),
        (Lazy, "RuntimeError: outside of a request", "a listener failed"),
        (
            partial(Lazy, int),
            "not a LocalTransactionState: Lazy",
            "a listener answered <Lazy without a text: RuntimeError>; it counts as UNKNOWN",
        ),
    ],
)
def test_an_answer_whose_own_code_fails_is_unknown(
    make: Callable[[], Any], remark: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    def execute(_message: HalfMessage, _arg: Any) -> Any:
        answer = make()
        if type(answer) is TextlessError:
            raise answer
        return answer

    result = FakeTransactionProducer().send_message_in_transaction(MESSAGE, execute=execute)
    assert (result.local_state, result.remark) == (UNKNOWN, remark)
    assert logged in caplog.text


def test_a_set_ends_as_one() -> None:
    producer = FakeTransactionProducer(Orders())
    result = producer.send_messages_in_transaction([MESSAGE, Message("points", b"two")])
    assert result.queue_offsets == (0, 1)
    assert [message.topic for message in producer.committed] == ["orders", "points"]


def test_pipelined_results_come_to_the_callback() -> None:
    results: list[Any] = []
    with FakeTransactionProducer(Orders()) as producer:
        producer.send_pipelined(MESSAGE, None, results.append)
        producer.fail_next_send = True
        producer.send_pipelined(MESSAGE, None, results.append)
        assert producer.flush() == 0
    assert results[0].local_state is COMMIT
    assert isinstance(results[1], SendError)


def test_without_a_listener_something_must_be_passed_to_run() -> None:
    producer = FakeTransactionProducer()
    with pytest.raises(NoListenerError):
        producer.send_message_in_transaction(MESSAGE)
    result = producer.send_message_in_transaction(MESSAGE, execute=lambda _half, _arg: COMMIT)
    assert result.local_state is COMMIT
    with pytest.raises(NoListenerError):
        producer.check()
