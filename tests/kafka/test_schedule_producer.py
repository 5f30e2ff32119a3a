"""Messages without a transaction: each in its schedule partition."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pipelines.local_broker.broker import Broker
from tests.support.transaction_topics import TransactionTopics
from txlake import (
    LocalTransactionState,
    Message,
    Producer,
    SendError,
)

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
MESSAGE = Message("orders", b"one")
pytestmark = pytest.mark.usefixtures("patient_producers")


@pytest.fixture
def topics(broker: Broker, unique: Callable[[str], str]) -> TransactionTopics:
    return TransactionTopics(broker.bootstrap_servers, unique("transactions"))


def test_plain_and_delayed_messages_go_to_their_schedule_partition(
    topics: TransactionTopics,
) -> None:
    topics.make(topics.schedule, 4)
    options = topics.options(delay_levels="1s 5s 10s")
    tomorrow = time.time_ns() // 1_000_000 + 86_400_000
    with Producer(topics.bootstrap_servers, options=options) as producer:
        results = producer.send_all(
            [
                Message("orders", b"level 1", delay_level=1),
                Message("orders", b"level 9", delay_level=9),
                Message("orders", b"instant", deliver_at=tomorrow),
                Message("orders", b"span", deliver_after_ms=60_000),
                Message("orders", b"plain"),
            ]
        )
        assert producer.send(MESSAGE).queue_id == 3
    assert [result.queue_id for result in results] == [0, 2, 3, 3, 3]
    records = {record.body: record for record in topics.records(topics.schedule)}
    assert records[b"level 9"].headers["DELAY"] == "9"
    assert records[b"instant"].headers["DELIVER_AT"] == str(tomorrow)
    assert records[b"span"].headers["DELAY_MS"] == "60000"
    assert records[b"plain"].names == ["UNIQ_KEY", "REAL_TOPIC", "BORN_TIMESTAMP", "TXV"]


def test_a_schedule_partition_that_is_missing_is_an_error(topics: TransactionTopics) -> None:
    topics.make(topics.schedule, 1)
    with (
        Producer(topics.bootstrap_servers, options=topics.options()) as plain,
        pytest.raises(SendError, match=r"^1 message, not all stored: ") as refused,
    ):
        plain.send(Message("orders", b"", delay_level=2))
    assert "may be stored" not in str(refused.value)
