"""A producer whose listener answers what each test's `arg` says."""

from __future__ import annotations

from typing import Any

from tests.support.transaction_topics import TransactionTopics
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    TransactionListener,
    TransactionProducer,
)


class ScriptedListener(TransactionListener):
    """Answer what `arg` says; call it when it can be called."""

    def __init__(self) -> None:
        self.halves: list[HalfMessage] = []
        self.checks: list[CheckedMessage] = []

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        self.halves.append(message)
        state: LocalTransactionState = arg(message) if callable(arg) else arg
        return state

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        self.checks.append(message)
        return LocalTransactionState.UNKNOWN


def make_producer(
    topics: TransactionTopics,
    listener: ScriptedListener | None,
    client: Any = None,
    **options: Any,
) -> TransactionProducer:
    return TransactionProducer(
        topics.bootstrap_servers,
        "shop",
        listener,
        options=topics.options(**options),
        client=client,
    )
