"""The examples of docs/sdk.md run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txlake
from tests.support.lake_factory import LakeFactory
from txlake import Consumer, LocalTransactionState, Message
from txlake.testing import FakeTransactionProducer

ROOT = Path(__file__).parents[3]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sdk.md").read_text(), re.DOTALL)


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
    exec(EXAMPLES[2], namespace)  # noqa: S102
    assert capsys.readouterr().out == "0 0 b'0:0'\n0 1 b'0:1'\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_stopped_gives_its_queues_back(
    namespace: dict[str, Any], number: signal.Signals
) -> None:
    lake = LakeFactory(Path("demo-lake"))
    lake.make_topic("orders", 1)
    lake.deliver("orders", {0: 1})
    program = Path("service.py")
    program.write_text(EXAMPLES[3], "utf-8")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}

    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as service:
        assert service.stdout is not None and service.stderr is not None
        assert service.stdout.readline() == b"0 0 b'0:0'\n"
        service.send_signal(number)
        assert service.wait(60) == 0
        assert service.stderr.read() == b""

    with Consumer("demo-lake", "bonus", ["orders"], wait_for_owner_ms=0) as next_one:
        assert next_one.committed() == {("orders", 0): 1}
