"""What a publisher reads of its destination: all that is committed, however long that takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.connection import Cluster, Partition
from pipelines.local_broker.broker import Broker
from pipelines.publish import reading
from pipelines.publish.destination import Destination
from pipelines.publish.progress import NOTHING, TopicProgress, topic_record
from pipelines.publish.reading import begins_and_ends, last_records, read_committed
from pipelines.publish.transactions import Transactions
from pipelines.settings import PublisherSettings
from tests.support.wait import wait_until
from txlake import protocol as p


@pytest.fixture
def topic(broker: Broker, unique: Callable[[str], str]) -> str:
    """Return the name of a new Kafka topic of two partitions."""
    name = unique("reads")
    Cluster(broker.bootstrap_servers, {}).create_topic(NewTopic(name, 2))
    return name


def write(servers: str, topic: str, partition: int, count: int, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, b"v%d" % number, partition=partition, **more)
    producer.flush()


def published(queue_offset: int) -> list[tuple[str, bytes]]:
    return [(p.QUEUE_OFFSET, b"%d" % queue_offset), (p.LAKE_ID, b"ours"), (p.PLACE, b"half:0-0")]


@pytest.fixture
def open_transaction(broker: Broker, unique: Callable[[str], str]) -> Iterator[Transactions]:
    """Return an open Kafka transaction."""
    settings = PublisherSettings(unique("other"), bootstrap_servers=broker.bootstrap_servers)
    transactions = Transactions(settings, "another-lake", 1_000_000)
    transactions.init()
    transactions.begin()
    yield transactions
    transactions.close()


def test_a_read_takes_as_long_as_records_come_and_as_its_caller_takes(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + taken_s)
    monkeypatch.setattr(reading, "time", clock)
    servers = broker.bootstrap_servers
    write(servers, topic, 0, 30)
    spans = begins_and_ends(Cluster(servers, {}), [(topic, 0)])

    read = []
    for message in read_committed(servers, {}, *spans):
        taken_s += 2 * reading._OPEN_S  # by the caller, for each record
        read.append(message.value())
    assert read == [b"v%d" % number for number in range(30)]


def test_a_read_ends_behind_an_open_transaction_though_another_partition_grows(
    broker: Broker, topic: str, open_transaction: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_OPEN_S", 2.0)
    servers = broker.bootstrap_servers
    open_transaction.send(topic, 0, [(b"open", None, 1, [])])
    open_transaction._producer.flush()
    write(servers, topic, 1, 1)
    spans = begins_and_ends(Cluster(servers, {}), [(topic, 0), (topic, 1)])
    ended = threading.Event()

    def grow() -> None:
        while not ended.wait(0.05):
            write(servers, topic, 1, 1)

    growth = threading.Thread(target=grow)
    growth.start()
    try:
        with pytest.raises(KafkaAwayError, match="a Kafka transaction is open, or nothing came"):
            list(read_committed(servers, {}, *spans))
    finally:
        ended.set()
        growth.join()


def test_records_of_aborted_transactions_are_something_new_to_a_read(
    broker: Broker, topic: str, open_transaction: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_STATISTICS_MS", 100)
    servers = broker.bootstrap_servers
    open_transaction.send(topic, 0, ((b"aborted", None, 1, []) for _ in range(100)))
    open_transaction._producer.flush()
    open_transaction.abort()

    reader = reading._Reader(servers, {})
    at: Partition = (topic, 0)
    reader.assign([(at, 0)])

    def fetched() -> int:
        message = reader.poll()
        assert message is None or message.error() is not None, "all is aborted"
        return reader.fetched({at: 1_000})

    wait_until(lambda: fetched() == 101, "100 records and a marker", seen=fetched)
    assert reader.fetched({at: 50}) == 50
    reader.close()


def test_the_last_record_before_an_aborted_transaction_is_near(
    broker: Broker, topic: str, open_transaction: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8,000 records before 300 aborted ones at most four times as many as these are read."""
    servers = broker.bootstrap_servers
    write(servers, topic, 0, 7_999, headers=published(1))
    write(servers, topic, 0, 1, headers=published(2))
    open_transaction.send(topic, 0, ((b"aborted", None, 1, published(3)) for _ in range(300)))
    open_transaction._producer.flush()
    open_transaction.abort()
    read = []

    def counted(*arguments: Any) -> Iterator[Any]:
        for message in read_committed(*arguments):
            read.append(message.offset())
            yield message

    monkeypatch.setattr(reading, "read_committed", counted)
    at = (topic, 0)
    records = last_records(servers, {}, *begins_and_ends(Cluster(servers, {}), [at]))
    assert records[at].queue_offset == 2
    assert len(read) == len(set(read)) <= 1_200, "each at most once"


def test_the_progress_topic_stays_small(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker", properties={"log.cleaner.backoff.ms": 200}) as own:
        settings = PublisherSettings("main", bootstrap_servers=own.bootstrap_servers)
        destination = Destination(settings)
        destination.make_progress_topic()

        producer = Producer({"bootstrap.servers": own.bootstrap_servers, "linger.ms": 5})
        for number in range(40_000):
            offsets = tuple(range(number, number + 32))
            progress = TopicProgress("orders", "there", "id", offsets, offsets, number, "digest")
            key, value = topic_record("lake", "main", progress)
            producer.produce(settings.progress_topic, value, key)
            if number % 10_000 == 0:
                producer.flush()
        producer.flush()

        def count() -> int:
            return sum(1 for _ in destination.progress_records(is_patient=True))

        wait_until(lambda: count() < 20_000, "Kafka has compacted most of it", seen=count)
        (progress,) = destination.progress().of("lake", "main").values()
        assert progress.epoch == 39_999
        assert progress.last_offset(32) == NOTHING
