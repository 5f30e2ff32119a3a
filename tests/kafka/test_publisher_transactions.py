"""Transactions of a publisher at the ends of what librdkafka and Kafka take."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.connection import Cluster
from pipelines.local_broker.broker import Broker
from pipelines.publish import transactions
from pipelines.publish.destination import Destination
from pipelines.publish.errors import FencedError, PublishError, RefusedRecordError
from pipelines.publish.transactions import EACH_ALONE, AddressedRecord, Transactions
from pipelines.settings import PublisherSettings, Settings, parse
from tests.support.kafka_admin import admin_client
from tests.support.publishers import PublishedLake, publish_all
from tests.support.wait import DEADLINE_S

Unique = Callable[[str], str]
Make = Callable[..., PublishedLake]
LARGE = 7 << 20  # more than librdkafka's queue holds with its smallest size here


@pytest.fixture
def make(broker: Broker, tmp_path: Path, unique: Unique) -> Make:
    """Return what makes a lake with a publisher; its Kafka topics have a prefix of their own."""

    def new(**publisher: Any) -> PublishedLake:
        return PublishedLake(
            tmp_path / "lake", broker.bootstrap_servers, unique("ends"), **publisher
        )

    return new


def limit_batches(servers: str, topic: str, bytes_max: int) -> None:
    entry = ConfigEntry(
        "max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_client(servers)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def publish(settings: Settings) -> int | BaseException:
    """Publish all; return the number of messages, or the error that ended it."""
    results: list[int | BaseException] = []

    def run() -> None:
        try:
            results.append(publish_all(settings))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert results, "it hangs"
    return results[0]


def test_records_of_the_largest_size_are_published(make: Make) -> None:
    lake = make()
    lake.send(*({"body": b"x" * LARGE, "real_queue_id": 1} for _ in range(3)))
    values = {**lake.values(), "transaction": {"message_bytes_max": 10 << 20}}

    assert publish(parse(values, "test")) == 3
    lake.require_published()


def test_a_record_that_librdkafka_does_not_take_at_all_is_named(make: Make) -> None:
    lake = make(record_bytes_max=2_000)
    lake.send({"body": b"x", "real_queue_id": 1}, {"body": b"x" * LARGE, "real_queue_id": 1})

    error = publish(lake.settings())
    assert isinstance(error, RefusedRecordError)
    assert "queue 1, offset 1): it is far larger than record_bytes_max; let it, or" in str(error)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_progress_topic_that_takes_no_progress_is_named(make: Make, is_begun: bool) -> None:
    lake = make()
    lake.send({"body": b"x"})
    settings = lake.settings()
    if is_begun:
        assert publish(settings) == 1
        lake.send({"body": b"y"})
    else:
        Destination(settings.publish["main"]).make_progress_topic()
    limit_batches(lake.servers, f"{lake.prefix}-progress", 100)

    error = publish(settings)
    assert isinstance(error, PublishError)
    assert f"the progress topic {lake.prefix}-progress does not take a record: " in str(error)


def test_a_process_that_is_stopped_does_not_wait_for_a_kafka_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_STOPPED_ROOM_S", 0.5)
    with Broker(tmp_path / "broker") as own:
        Cluster(own.bootstrap_servers, {}).create_topic(NewTopic("topic", 1))
        settings = PublisherSettings("main", bootstrap_servers=own.bootstrap_servers)
        narrow = {"queue.buffering.max.messages": 2}
        writer = Transactions(settings, "lake", 1_000_000, lambda: True, **narrow)
        writer.init()
        writer.begin()
        own.kill()

        began_at = time.monotonic()
        with pytest.raises(KafkaAwayError, match="the publisher is stopped"):
            writer.send("topic", 0, ((b"body", None, 1, []) for _ in range(3)))
        assert time.monotonic() - began_at < settings.transaction_timeout_ms / 2_000
        writer.close()


def test_a_few_large_messages_are_cut_by_their_bytes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make(transaction_bytes_max=100_000)
    for _ in range(2):
        lake.send(*({"body": b"x" * 10_000} for _ in range(30)))
    seen = [0]
    commit = Transactions.commit

    def committed(self: Transactions) -> None:
        commit(self)
        seen.append(len(lake.consume()))

    monkeypatch.setattr(Transactions, "commit", committed)
    assert publish_all(lake.settings()) == 60
    sizes = [after - before for before, after in itertools.pairwise(seen)]
    assert max(sizes) <= 13, f"ten, and each of four queues rounds up: {sizes}"


def test_a_look_for_a_refused_record_without_all_answers_says_so(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as own:
        Cluster(own.bootstrap_servers, {}).create_topic(NewTopic("topic", 1))
        settings = PublisherSettings(
            "main", bootstrap_servers=own.bootstrap_servers, transaction_timeout_ms=2_000
        )
        finder = Transactions(settings, "lake", 1_000_000, **EACH_ALONE)
        finder.init()
        going_on = threading.Timer(4.0, os.kill, (own.pid, signal.SIGCONT))

        def candidates() -> Iterator[AddressedRecord]:
            yield AddressedRecord("topic", 0, (b"first", None, 1, []))
            assert not finder._producer.flush(DEADLINE_S)
            os.kill(own.pid, signal.SIGSTOP)
            going_on.start()
            yield AddressedRecord("topic", 0, (b"second", None, 1, []))

        with pytest.raises((KafkaAwayError, FencedError)):
            finder.find_refused(candidates())
        going_on.join()
        finder.close()
