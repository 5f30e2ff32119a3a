"""The examples of docs/sdk.md run."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txlake
from tests.support.lake_factory import LakeFactory
from tests.support.postgres import postgres
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    ConsumedMessage,
    Consumer,
    HalfMessage,
    LocalTransactionState,
    Message,
    TransactionSendResult,
)
from txlake.ordering import with_queue
from txlake.testing import FakeTransactionProducer

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "sdk.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def example(part: str) -> str:
    """Return the only example that has these words."""
    (text,) = [text for text in EXAMPLES if part in text]
    return text


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table after some words of the document, without its head."""
    lines = TEXT[TEXT.index(heading) :].split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return {}


def test_the_guard_lets_no_transaction_commit_that_was_rolled_back(
    namespace: dict[str, Any],
) -> None:
    exec(EXAMPLES[0], namespace)  # noqa: S102
    listener = namespace["OrderListener"]("shop.db")
    producer = FakeTransactionProducer(listener)
    producer.lose_next_operation = True
    producer.send_message_in_transaction(Message("orders", b"", keys="o-1"))
    assert producer.check() == [LocalTransactionState.COMMIT_MESSAGE]

    def check_first(half: Any, _arg: Any) -> LocalTransactionState:
        assert producer.check(half.transaction_id) == [LocalTransactionState.ROLLBACK_MESSAGE]
        state: LocalTransactionState = listener.execute_local_transaction(half, None)
        return state

    late = producer.send_message_in_transaction(
        Message("orders", b"", keys="o-2"), execute=check_first
    )
    assert late.local_state is LocalTransactionState.UNKNOWN
    assert "UNIQUE constraint" in late.remark
    assert [message.keys for message in producer.committed] == ["o-1"]


def test_the_producer_example_sends_four_transactions(
    namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    producers: list[FakeTransactionProducer] = []

    def make(_servers: str, _group: str, listener: Any) -> FakeTransactionProducer:
        producers.append(FakeTransactionProducer(listener))
        return producers[0]

    monkeypatch.setattr(txlake, "TransactionProducer", make)
    exec(EXAMPLES[0], namespace)  # noqa: S102
    exec(EXAMPLES[1], namespace)  # noqa: S102
    assert [message.keys for message in producers[0].committed] == ["o-1", "o-2", "o-3", "o-4"]


def test_the_consumer_example_prints_messages(
    namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lake = LakeFactory(Path("demo-lake"))
    lake.make_topic("orders", 1)
    lake.deliver("orders", {0: 2})
    text = example("as consumer:\n    for message in consumer.poll")
    exec(text, namespace)  # noqa: S102
    assert capsys.readouterr().out == "0 0 b'0:0'\n0 1 b'0:1'\n"


def test_the_example_of_a_key_asks_the_lake_for_the_number_of_queues(
    namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    LakeFactory(Path("demo-lake")).make_topic("orders", 4)
    queues: list[int | None] = []

    class Recorder(txlake.Producer):
        def send(self, message: Message) -> Any:
            queues.append(with_queue(message, self._queue_counts).queue_id)

    monkeypatch.setattr(txlake, "Producer", Recorder)
    exec(example("LakeQueueCounts"), namespace)  # noqa: S102
    assert queues == [1]


def test_the_example_with_a_database_handles_each_message_once(namespace: dict[str, Any]) -> None:
    lake = LakeFactory(Path("demo-lake"))
    lake.make_topic("orders", 1)
    rows = [lake.row(0, offset, keys=f"c-{offset}") for offset in range(3)]
    lake.write_rows("orders", rows)

    exec(example("SqlInbox"), namespace)  # noqa: S102
    with Consumer("demo-lake", "points", ["orders"]) as consumer:
        consumer.seek("orders", 0, 0)
        consumer.commit()
    exec(example("SqlInbox"), namespace)  # noqa: S102

    with namespace["engine"].begin() as db:
        assert db.execute(namespace["points"].select()).scalars().all() == ["c-0", "c-1", "c-2"]
    namespace["engine"].dispose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_stopped_gives_its_queues_back(
    namespace: dict[str, Any], number: signal.Signals
) -> None:
    lake = LakeFactory(Path("demo-lake"))
    lake.make_topic("orders", 1)
    lake.deliver("orders", {0: 1})
    program = Path("service.py")
    program.write_text(example("bonus"), "utf-8")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}

    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as service:
        assert service.stdout is not None and service.stderr is not None
        assert service.stdout.readline() == b"0 0 b'0:0'\n"
        service.send_signal(number)
        assert service.wait(DEADLINE_S) == 0
        assert service.stderr.read() == b""

    with Consumer("demo-lake", "bonus", ["orders"], wait_for_owner_ms=0) as next_one:
        assert next_one.committed() == {("orders", 0): 1}


def test_a_check_waits_for_the_local_transaction_that_postgresql_still_runs() -> None:
    namespace: dict[str, Any] = {}
    exec(example("import psycopg"), namespace)  # noqa: S102

    with postgres() as dsn:
        listener = namespace["PostgresListener"](dsn)
        producer = FakeTransactionProducer(listener)

        # The COMMIT is lost: the check finds the guard.
        producer.lose_next_operation = True
        producer.send_message_in_transaction(Message("orders", b"", keys="o-1"))
        assert producer.check() == [LocalTransactionState.COMMIT_MESSAGE]

        # A check comes before the local transaction: that one fails, and nothing is written.
        def check_first(half: Any, _arg: Any) -> LocalTransactionState:
            assert producer.check(half.transaction_id) == [LocalTransactionState.ROLLBACK_MESSAGE]
            state: LocalTransactionState = listener.execute_local_transaction(half, None)
            return state

        late = producer.send_message_in_transaction(
            Message("orders", b"", keys="o-2"), execute=check_first
        )
        assert "duplicate key" in late.remark

        # A check comes while the local transaction runs: it waits, and says what that one did.
        message = Message("orders", b"", keys="o-3")
        running = HalfMessage(message, [message], "t-3")
        with psycopg.connect(dsn) as db:
            db.execute("INSERT INTO ends VALUES ('t-3', 'COMMIT')")
            with ThreadPoolExecutor(1) as threads:
                answer = threads.submit(listener.check_local_transaction, running)
                wait_until(lambda: waits_for_a_lock(dsn), "the check waits for the row")
                assert not answer.done()
                db.commit()
                assert answer.result() is LocalTransactionState.COMMIT_MESSAGE

        with psycopg.connect(dsn) as db:
            assert db.execute("SELECT id FROM orders").fetchall() == [("o-1",)]


def waits_for_a_lock(dsn: str) -> bool:
    """Return whether a connection of this server waits for a lock."""
    with psycopg.connect(dsn) as db:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        (number,) = db.execute(query).fetchone() or (0,)
        return bool(number)


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("`TransactionSendResult`:", [field.name for field in fields(TransactionSendResult)]),
        ("A `ConsumedMessage`", list(ConsumedMessage._fields)),
    ],
)
def test_every_field_is_described(heading: str, fields: list[str]) -> None:
    described = [name for row in rows(heading) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(described) == sorted(fields)


def test_every_parameter_of_a_consumer_is_described_with_its_default() -> None:
    parameters = [*inspect.signature(Consumer).parameters.values()]
    described = [(row[0].strip("`"), row[1].strip("`")) for row in rows("parameters of `Consumer`")]

    assert described == [
        (each.name, "" if each.default is each.empty else repr(each.default)) for each in parameters
    ]
