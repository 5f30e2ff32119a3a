"""A record at `message_bytes_max` passes everywhere: SDK, topics, Spark, checks, delivery."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyspark.sql import SparkSession

from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import producer_config
from pipelines.local_broker.broker import Broker
from tests.support.job import PATIENT, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.producers import CommitsWhenAsked, options_of
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    LocalTransactionState,
    Message,
    MessageError,
    Producer,
    TransactionProducer,
    protocol,
)
from txlake._half import group_headers, message_headers

Unique = Callable[[str], str]
KAFKAS_DEFAULT = 1_048_588  # of message.max.bytes and max.message.bytes
LIMIT = protocol.MESSAGE_BYTES_MAX
TOO_LARGE = r"1048577 bytes .* = 1048576 at most"
UNKNOWN = LocalTransactionState.UNKNOWN


def at_the_limit(topic: str, group: protocol.Headers, over: int = 0) -> Message:
    """Returns a message whose record has message_bytes_max, or so many bytes more."""
    properties = {"colour": "grün", "long": "x" * 20_000}
    empty = Message(topic, b"", keys="k", properties=properties)
    headers = message_headers(empty, group, "i" * 32, time.time_ns() // 1_000_000)
    body_bytes = LIMIT - protocol.record_bytes(None, headers) + over
    body = random.Random(1).randbytes(body_bytes)  # compressed, it is no smaller
    return Message(topic, body, keys="k", properties=properties)


def make_topic(servers: str, topic: str, **config: str) -> None:
    admin = admin_client(servers)
    admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(DEADLINE_S)


def batch_bytes_max_of(servers: str, topic: str) -> int:
    admin = admin_client(servers)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return int(config["max.message.bytes"].value)


def test_a_record_at_the_limit_is_asked_about_and_delivered_and_one_byte_more_is_refused(
    tmp_path: Path, unique: Unique, spark: SparkSession
) -> None:
    """On a broker with Kafka's defaults. A check topic that takes less gets no body."""
    name = unique("sizes")
    with Broker(tmp_path / "broker", message_bytes_max=KAFKAS_DEFAULT) as own:
        servers = own.bootstrap_servers
        # Asked once, and answered however slowly.
        asked_once = {**PATIENT, "check_interval_ms": 3_600_000}
        settings = settings_for(own, tmp_path / "lake", name, transaction=asked_once)
        options, prefix = options_of(settings), f"{name}-check-"
        make_topic(servers, f"{prefix}small", **{"max.message.bytes": "30000"})
        shop, small = CommitsWhenAsked(), CommitsWhenAsked()
        with (
            running(settings, verifies=False) as job,
            TransactionProducer(servers, "shop", shop, options=options) as producer,
            TransactionProducer(servers, "small", small, options=options) as other,
            Producer(servers, options=options) as plain,
        ):
            topics = admin_client(servers).list_topics
            wait_until(lambda: f"{prefix}shop" in topics(timeout=DEADLINE_S).topics, "its topic")
            fits = at_the_limit("orders", group_headers("shop"))
            with pytest.raises(MessageError, match=TOO_LARGE):
                producer.send_message_in_transaction(
                    at_the_limit("orders", group_headers("shop"), 1)
                )
            with pytest.raises(MessageError, match=TOO_LARGE):
                plain.send(at_the_limit("plain", [], 1))
            producer.send_message_in_transaction(fits)
            omitted = at_the_limit("others", group_headers("small"))
            other.send_message_in_transaction(omitted)
            sent = at_the_limit("plain", [])
            plain.send(sent)
            wanted = {"orders": fits, "others": omitted, "plain": sent}
            for topic, message in wanted.items():
                (row,) = job.wait_for(lambda topic=topic: job.messages(topic), topic)
                assert row["body"] == message.body, topic
                assert dict(row["properties"]) == message.properties
            assert [row["error"] for row in job.rows("half") + job.rows("schedule")] == [None] * 3
            assert batch_bytes_max_of(servers, f"{prefix}shop") == 1_114_112
    (asked,) = {message.check_id: message for message in shop.asked}.values()
    assert (asked.body, asked.is_body_omitted) == (fits.body, False)
    assert asked.properties == fits.properties
    (asked,) = {message.check_id: message for message in small.asked}.values()
    assert (asked.body, asked.is_body_omitted) == (None, True)
    assert asked.properties == omitted.properties


@pytest.mark.parametrize(
    ("message_bytes_max", "expected"), [(LIMIT, 1_114_112), (3 << 20, (3 << 20) + 65_536),
                                        (1_000, KAFKAS_DEFAULT)]
)  # fmt: skip
def test_the_jobs_topics_take_a_record_at_the_limit(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    message_bytes_max: int,
    expected: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Never less than Kafka's default, which batches of many records count on."""
    limit = {"message_bytes_max": message_bytes_max}
    settings = settings_for(broker, tmp_path / "lake", unique("topics"), transaction=limit)
    topics = KafkaAdmin(settings, settings.kafka.topics())
    topics.create_missing()
    topics.check()
    for name in topics.names.values():
        assert batch_bytes_max_of(broker.bootstrap_servers, name) == expected
    config = producer_config(broker.bootstrap_servers, {}, message_bytes_max)
    assert config["message.max.bytes"] == expected
    assert caplog.messages == []


def test_a_topic_that_takes_less_is_warned_of_in_one_sentence(
    broker: Broker, tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka refuses what is too large, and its producer is told: no reason to stop the job."""
    settings = settings_for(broker, tmp_path / "lake", unique("old"))
    topics = KafkaAdmin(settings, settings.kafka.topics())
    topics.create_missing()
    half_topic = settings.kafka.half_topic
    change = ConfigEntry(
        "max.message.bytes", str(KAFKAS_DEFAULT), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, half_topic, incremental_configs=[change])
    admin = admin_client(broker.bootstrap_servers)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    wait_until(
        lambda: batch_bytes_max_of(broker.bootstrap_servers, half_topic) == KAFKAS_DEFAULT,
        "the changed setting",
    )
    topics.check()
    assert caplog.record_tuples == [
        (
            "txlake.kafka",
            logging.WARNING,
            "Kafka may refuse records of message_bytes_max = 1048576 bytes, which need a topic's "
            f"max.message.bytes=1114112: {half_topic} has 1048588; raise it, or lower "
            "message_bytes_max",
        )
    ]
