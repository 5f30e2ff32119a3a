"""How many messages a Kafka transaction may hold, after those before it."""

from __future__ import annotations

import pytest

from pipelines.publish.transaction_limit import TransactionLimit
from pipelines.settings import PublisherSettings


@pytest.fixture
def limit() -> TransactionLimit:
    return TransactionLimit(
        PublisherSettings("main", transaction_messages_max=1_000, transaction_timeout_ms=60_000)
    )


def test_a_transaction_that_took_too_long_halves_it(
    limit: TransactionLimit, caplog: pytest.LogCaptureFixture
) -> None:
    limit.count_failed(60.0, 1_000)
    assert limit.messages == 500
    limit.count_failed(70.0, 501)  # a message transaction is not cut
    assert limit.messages == 250
    assert [record.message for record in caplog.records] == [
        "publisher main: a transaction with 1000 messages failed after 60 s, and Kafka aborts it "
        "after 60 s (transaction_timeout_ms); the next have at most 500",
        "publisher main: a transaction with 501 messages failed after 70 s, and Kafka aborts it "
        "after 60 s (transaction_timeout_ms); the next have at most 250",
    ]


def test_one_that_was_small_halves_what_it_held(limit: TransactionLimit) -> None:
    limit.count_failed(61.0, 40)
    assert limit.messages == 20
    for _ in range(10):
        limit.count_failed(61.0, 1)
    assert limit.messages == 1


def test_one_that_failed_at_once_changes_nothing(
    limit: TransactionLimit, caplog: pytest.LogCaptureFixture
) -> None:
    limit.count_failed(59.9, 1_000)
    assert limit.messages == 1_000
    assert caplog.records == []


def test_quick_ones_double_it_up_to_the_settings(limit: TransactionLimit) -> None:
    limit.count_failed(60.0, 600)
    limit.count_committed(15.0)  # a quarter of the time-out: two would take half of it
    assert limit.messages == 300
    limit.count_committed(14.9)
    assert limit.messages == 600
    limit.count_committed(1.0)
    assert limit.messages == 1_000
