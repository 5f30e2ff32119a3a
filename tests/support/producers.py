"""Producers beside a job: what they need to know of it, and a listener that commits when asked."""

from __future__ import annotations

from typing import Any

from pipelines.settings import Settings
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    ProducerOptions,
    TransactionListener,
)


def options_of(settings: Settings, **more: Any) -> ProducerOptions:
    """Returns the options of a producer that sends to a job's topics."""
    kafka = settings.kafka
    return ProducerOptions(
        half_topic=kafka.half_topic,
        op_topic=kafka.op_topic,
        schedule_topic=kafka.schedule_topic,
        check_topic_prefix=kafka.check_topic_prefix,
        **more,
    )


class CommitsWhenAsked(TransactionListener):
    """Ends no transaction, and answers every check with COMMIT. `asked`: those checks."""

    def __init__(self) -> None:
        self.asked: list[CheckedMessage] = []

    def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        """Returns UNKNOWN."""
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        """Returns COMMIT."""
        self.asked.append(message)
        return LocalTransactionState.COMMIT_MESSAGE
