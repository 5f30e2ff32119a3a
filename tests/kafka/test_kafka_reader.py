"""Records read by their offsets: all of a range, nothing beyond, whatever stands between."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipelines.errors import KafkaAwayError, LostInputError
from pipelines.kafka_client.record_reader import read_kafka, unread_error
from pipelines.local_broker.broker import Broker
from pipelines.settings import KafkaSettings
from storage.tasks import kafka_reader
from storage.tasks.kafka_reader import (
    KafkaSource,
    RecordRange,
    UnreadRecordsError,
    close_consumer,
    read_records,
)
from storage.wire.decode import KAFKA
from tests.support.kafka_admin import admin_client
from tests.support.slow_broker import SlowBroker
from tests.support.wait import DEADLINE_S

Unique = Callable[[str], str]


@pytest.fixture
def source(broker: Broker) -> Iterator[KafkaSource]:
    close_consumer()
    yield KafkaSource(broker.bootstrap_servers)
    close_consumer()


def make_topic(broker: Broker, topic: str, partitions: int = 1, **config: str) -> AdminClient:
    admin = admin_client(broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(DEADLINE_S)
    return admin


def write(
    broker: Broker, topic: str, outcomes: str, name: str = "t", **config: str | int
) -> list[int]:
    """Write records, one of each Kafka transaction: "c" is committed, "a" aborted, "." in none.

    Return the offsets of the records; the end of a transaction has one of its own.
    """
    config = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **config}
    plain = Producer(config)
    offsets: list[int] = []
    transactional = None

    def note(_error: object, message: object) -> None:
        offsets.append(message.offset())  # type: ignore[attr-defined]

    for outcome in outcomes:
        if outcome == ".":
            plain.produce(topic, outcome, on_delivery=note)
            assert plain.flush(DEADLINE_S) == 0
            continue

        if transactional is None:
            transactional = Producer({**config, "transactional.id": name})
            transactional.init_transactions(60)
        transactional.begin_transaction()
        transactional.produce(topic, outcome, on_delivery=note)
        assert transactional.flush(DEADLINE_S) == 0
        if outcome == "c":
            transactional.commit_transaction(60)
        else:
            transactional.abort_transaction(60)
    return offsets


def offsets_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_ends_at_its_end_whatever_stands_there(
    broker: Broker, source: KafkaSource, unique: Unique
) -> None:
    """Every range of a partition whose offsets are records and markers, also one at its end."""
    topic = unique("markers")
    make_topic(broker, topic)
    offsets = write(broker, topic, "..ca.a.ccac", unique("tx"))
    end = offsets[-1] + 2  # the last record's, and its marker's
    assert len(offsets) < end

    for start in range(end + 1):
        for stop in range(start, end + 1):
            read = offsets_of(read_records(source, [RecordRange(topic, 0, start, stop)]))
            assert read == [offset for offset in offsets if start <= offset < stop], (start, stop)


def test_records_are_as_they_were_written(
    broker: Broker, source: KafkaSource, unique: Unique
) -> None:
    topic = unique("written")
    make_topic(broker, topic, **{"message.timestamp.type": "CreateTime"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    headers = [("a", b"1"), ("none", None), ("a", b"\xff"), ("gr\u00fcn", b"")]
    producer.produce(topic, b"body", b"key", headers=headers, timestamp=17)
    producer.produce(topic, None, None, timestamp=18)
    assert producer.flush(DEADLINE_S) == 0

    records = pa.Table.from_batches(read_records(source, [RecordRange(topic, 0, 0, 2)]), KAFKA)
    times = records["timestamp"].cast(pa.int64()).to_pylist()
    rows = records.drop_columns("timestamp").to_pylist()
    assert times == [17_000, 18_000]
    assert rows == [
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "key": b"key",
            "value": b"body",
            "headers": [{"key": name, "value": value} for name, value in headers],
        },
        {"topic": topic, "partition": 0, "offset": 1, "key": None, "value": None, "headers": None},
    ]


@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip"])
def test_a_batch_that_unpacks_to_a_hundred_megabytes_is_read(
    broker: Broker, source: KafkaSource, unique: Unique, codec: str
) -> None:
    """Each record is below the usual limit, and together they have some kilobytes in Kafka."""
    topic = unique("unpacked")
    make_topic(broker, topic)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "compression.type": codec,
            "message.max.bytes": 900_000_000,
            "batch.size": 800_000_000,
            "linger.ms": 60_000,
            "queue.buffering.max.kbytes": 900_000,
        }
    )
    for _ in range(110):
        producer.produce(topic, bytes(990_000))
    assert producer.flush(DEADLINE_S) == 0

    read = offsets_of(read_records(source, [RecordRange(topic, 0, 0, 110)]))
    assert read == list(range(110))


def test_one_consumer_is_kept_from_one_landing_to_the_next(
    broker: Broker, source: KafkaSource, unique: Unique
) -> None:
    topic = unique("kept")
    make_topic(broker, topic, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(2_000):
        producer.produce(topic, os.urandom(200), partition=number % 2)
    assert producer.flush(DEADLINE_S) == 0

    kept = set()
    for start in range(0, 1_000, 100):
        ranges = [RecordRange(topic, p, start, start + 100) for p in (0, 1)]
        assert offsets_of(read_records(source, ranges)) == [*range(start, start + 100)] * 2
        (one,) = kafka_reader._kept
        kept.add(id(one.consumer))
    assert len(kept) == 1

    # A reader that is left midway leaves nothing behind that the next one would read.
    next(read_records(source, [RecordRange(topic, 0, 0, 1_000)])).num_rows  # noqa: B018
    again = read_records(source, [RecordRange(topic, 1, 990, 1_000)])
    assert offsets_of(again) == [*range(990, 1_000)]


def test_the_second_topic_of_a_consumer_does_not_wait_for_librdkafkas_look(
    broker: Broker, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [unique("first"), unique("second")]
    for topic in topics:
        make_topic(broker, topic)
        write(broker, topic, "..")
    client = {"debug": "topic", "log_level": 7, "logger": logging.getLogger("librdkafka")}
    source = KafkaSource(broker.bootstrap_servers, client)
    close_consumer()

    with caplog.at_level(logging.DEBUG, "librdkafka"):
        for topic in topics:
            assert offsets_of(read_records(source, [RecordRange(topic, 0, 0, 2)])) == [0, 1]
        (kept,) = kafka_reader._kept
        kept.consumer.poll(0)  # hands over what was logged
        close_consumer()

    # NOINFO: its look, once a second, has found an assigned topic that it does not know.
    assert "STATE" in caplog.text
    assert "NOINFO" not in caplog.text


def test_offsets_that_are_gone_are_lost_input(
    broker: Broker, source: KafkaSource, unique: Unique
) -> None:
    topic = unique("gone")
    admin = make_topic(broker, topic)
    write(broker, topic, "." * 10)
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(DEADLINE_S)

    for start, stop in ((0, 10), (3, 4), (20, 21)):
        with pytest.raises(UnreadRecordsError) as error:
            offsets_of(read_records(source, [RecordRange(topic, 0, start, stop)]))
        found = unread_error(f"a trace\n  {type(error.value)}: {error.value}\nmore")
        assert isinstance(found, LostInputError)
        assert f"from offset {start} of {topic} partition 0 on" in str(found)
    assert offsets_of(read_records(source, [RecordRange(topic, 0, 4, 10)])) == [*range(4, 10)]


def test_a_record_that_takes_longer_than_a_kafka_that_does_not_answer_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_NO_RECORD_S", 0.5)
    monkeypatch.setattr(kafka_reader, "_ANSWER_S", DEADLINE_S)
    with SlowBroker(tmp_path) as broker:
        make_topic(broker, "slow")
        producer = Producer({"bootstrap.servers": broker.link})
        producer.produce("slow", os.urandom(600_000))
        assert producer.flush(DEADLINE_S) == 0

        close_consumer()
        broker.bytes_per_s = 200_000
        read = read_records(KafkaSource(broker.link), [RecordRange("slow", 0, 0, 1)])
        assert offsets_of(read) == [0]
        close_consumer()


def test_a_kafka_that_does_not_answer_is_away(
    broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_NO_RECORD_S", 1.0)
    monkeypatch.setattr(kafka_reader, "_ANSWER_S", 1.0)
    for servers in (broker.bootstrap_servers, "127.0.0.1:1"):
        kafka = KafkaSettings(bootstrap_servers=servers)
        with pytest.raises(KafkaAwayError, match="no record within"):
            list(read_kafka(kafka, {(unique("nowhere"), 0): range(1)}))
