"""An ordering key chooses a queue by the topic's number of queues, as it is now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.lake_factory import LakeFactory
from txlake import (
    LakeError,
    LakeQueueCounts,
    LocalTransactionState,
    Message,
    MessageError,
    Producer,
    TransactionProducer,
    TxlakeError,
    UnknownTopicError,
)
from txlake.ordering import murmur2, queue_for_key, with_queue
from txlake.testing import FakeTransactionProducer

NOWHERE = "127.0.0.1:1"


# Kafka's own, of UtilsTest.testMurmur2; Java's int has a sign.
@pytest.mark.parametrize(
    ("data", "hash_in_java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_the_hash_is_kafkas(data: bytes, hash_in_java: int) -> None:
    assert murmur2(data) == hash_in_java & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ordering_key": ""}, "ordering_key ''"),
        ({"ordering_key": 7}, "ordering_key: a str, not int"),
        ({"ordering_key": "\ud800"}, "cannot be written as UTF-8"),
        ({"ordering_key": "c-7", "queue_id": 0}, "only one of them, not 0, 'c-7'"),
    ],
)
def test_these_keys_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageError, match=said):
        Message("orders", b"x", **fields)


def test_a_message_asks_for_the_queue_of_its_key() -> None:
    message = Message("orders", b"x", keys="c-7", ordering_key="c-7")

    for count in (1, 4, 12):
        asked = with_queue(message, {"orders": count})
        assert (asked.queue_id, asked.ordering_key) == (queue_for_key("c-7", count), None)
        assert (asked.body, asked.keys) == (b"x", "c-7")

    plain = Message("orders", b"x", queue_id=3)
    assert with_queue(plain, None) is plain


@pytest.mark.parametrize(
    ("queue_counts", "error", "said"),
    [
        (None, MessageError, "ordering_key 'c-7': the producer has no queue_counts"),
        ({"bills": 4}, UnknownTopicError, "topic orders: queue_counts do not have it"),
    ],
)
def test_a_key_without_a_number_of_queues_is_refused_before_anything_is_sent(
    queue_counts: dict[str, int] | None, error: type[TxlakeError], said: str
) -> None:
    message = Message("orders", b"x", ordering_key="c-7")
    transactional = TransactionProducer(NOWHERE, "shop", queue_counts=queue_counts)
    plain = Producer(NOWHERE, queue_counts=queue_counts)
    fake = FakeTransactionProducer(queue_counts=queue_counts)

    def never(_half: Any, _arg: Any) -> LocalTransactionState:
        raise AssertionError("the local transaction ran")

    with transactional, plain, fake:
        with pytest.raises(error, match=said):
            transactional.send_message_in_transaction(message, execute=never)
        with pytest.raises(error, match=said):
            plain.send(message)
        with pytest.raises(error, match=said):
            fake.send_message_in_transaction(message, execute=never)


@pytest.mark.parametrize(
    ("queue_counts", "error", "said"),
    [
        ({"orders": 0}, ValueError, r"queue_counts\['orders'\] = 0: 1 to 10000"),
        ({"orders": "4"}, ValueError, r"queue_counts\['orders'\] = '4'"),
        (["orders"], TypeError, "queue_counts: a dict .* not list"),
    ],
)
def test_wrong_counts_are_refused_when_a_producer_is_made(
    queue_counts: Any, error: type[Exception], said: str
) -> None:
    for make in (
        lambda: TransactionProducer(NOWHERE, "shop", queue_counts=queue_counts),
        lambda: Producer(NOWHERE, queue_counts=queue_counts),
        lambda: FakeTransactionProducer(queue_counts=queue_counts),
    ):
        with pytest.raises(error, match=said):
            make()


@pytest.fixture
def lake(tmp_path: Path) -> LakeFactory:
    factory = LakeFactory(tmp_path / "lake")
    factory.make_topic("orders", 2)
    return factory


def test_counts_of_a_lake_follow_its_catalog(lake: LakeFactory) -> None:
    counts = LakeQueueCounts(lake.path, refresh_ms=0)
    assert dict(counts) == {"orders": 2}

    lake.catalog_row("orders", 8)
    lake.make_topic("bills", 1)
    assert dict(counts) == {"orders": 8, "bills": 1}

    with pytest.raises(UnknownTopicError, match="make the topic first"):
        with_queue(Message("stock", b"x", ordering_key="k"), counts)


def test_a_count_is_read_again_only_when_it_is_too_old(lake: LakeFactory) -> None:
    counts = LakeQueueCounts(lake.path, refresh_ms=3_600_000)
    assert counts["orders"] == 2

    lake.catalog_row("orders", 8)
    assert counts["orders"] == 2
    assert LakeQueueCounts(lake.path)["orders"] == 8


def test_a_count_that_cannot_be_read_again_is_not_used(lake: LakeFactory) -> None:
    counts = LakeQueueCounts(lake.path, refresh_ms=0)
    fake = FakeTransactionProducer(queue_counts=counts)
    message = Message("orders", b"x", ordering_key="c-7")

    def commit(_half: Any, _arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    fake.send_message_in_transaction(message, execute=commit)
    os.rename(lake.path, lake.path.with_name("gone"))

    with pytest.raises(LakeError, match="the lake's catalog is gone"):
        fake.send_message_in_transaction(message, execute=commit)
    assert fake.committed == [message]


def test_a_count_is_not_the_one_before_a_read_that_failed(lake: LakeFactory) -> None:
    counts = LakeQueueCounts(lake.path, refresh_ms=0)
    assert counts["orders"] == 2

    lake.catalog_row("orders", 8)
    files = sorted((lake.path / "catalog").glob("*.parquet"))
    for file in files:
        file.rename(file.with_suffix(".away"))
    for _ in range(2):
        with pytest.raises(LakeError, match="the table catalog cannot be read"):
            counts["orders"]

    for file in files:
        file.with_suffix(".away").rename(file)
    assert counts["orders"] == 8


def test_no_lake_and_a_wrong_span_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake here"):
        LakeQueueCounts(tmp_path / "nothing")
    with pytest.raises(ValueError, match="refresh_ms -1: 0 or more"):
        LakeQueueCounts(tmp_path, refresh_ms=-1)
