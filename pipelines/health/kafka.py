"""The facts that only Kafka has: how far behind the job is, and who listens for checks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10's is its own

from confluent_kafka import KafkaException, TopicPartition

from pipelines.errors import LostInputError, StartError
from pipelines.health.facts import TopicLag
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import (
    REQUEST_TIMEOUT_S,
    Cluster,
    Partition,
    client_config,
    new_consumer,
)
from pipelines.kafka_client.source_log import SourceLog
from pipelines.settings import KafkaSettings, Settings
from storage.lake.epochs import Plan
from storage.wire.record_kinds import ADMIN
from txlake.protocol import check_topic

_OLDEST_S = 3.0
_POLL_S = 0.1
_RECORD_BYTES = 65_536


def start_error(settings: Settings, last: Plan | None) -> str | None:
    """Returns why a job on this lake refuses Kafka's topics as they are; None if it does not.

    Input: the newest plan of the lake; None before the first: the job creates missing topics then.
    Errors: KafkaAwayError.
    """
    if last is None:
        return None

    kafka = KafkaAdmin(settings, settings.kafka.topics())
    log = SourceLog(kafka)
    try:
        log.check(last)
        kafka.require_sound()
        log.start_offsets(last.landed())
    except (LostInputError, StartError) as error:
        return str(error)
    return None


def topic_lags(settings: Settings, last: Plan | None) -> list[TopicLag]:
    """Returns how far the job is behind each of its topics.

    Input: the newest plan of the lake; None before the first.
    Errors: KafkaAwayError; LostInputError when this is another cluster than the lake's.
    """
    names = settings.kafka.topics()
    kafka = KafkaAdmin(settings, names)

    if last is not None and last.cluster_id and kafka.cluster_id() != last.cluster_id:
        raise LostInputError(
            f"this is another Kafka cluster than {last.cluster_id}, which the lake was made from; "
            "check bootstrap_servers"
        )

    ends = kafka.end_offsets(kafka.partitions())
    next_offsets = {} if last is None else last.landed()
    first = kafka.beginning_offsets(
        partition for partition in ends if partition not in next_offsets
    )
    starts = {partition: next_offsets.get(partition, first.get(partition, 0)) for partition in ends}
    behind = {partition: start for partition, start in starts.items() if start < ends[partition]}

    oldest = _oldest_stored_at(settings.kafka, behind)

    return [
        TopicLag(
            topic,
            records=sum(
                ends[partition] - start
                for partition, start in behind.items()
                if partition[0] == topic
            ),
            oldest_at=min(
                (at for partition, at in oldest.items() if partition[0] == topic), default=None
            ),
            makes_epochs=kind != ADMIN,
        )
        for kind, topic in names.items()
    ]


def _oldest_stored_at(
    kafka: KafkaSettings, starts: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Returns when the first record at or after an offset was stored, for each partition; ms."""
    if not starts:
        return {}

    consumer = new_consumer(
        {
            **client_config(kafka.bootstrap_servers, kafka.client),
            "group.id": "txlake-status",  # it commits nothing and joins no group
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "isolation.level": "read_uncommitted",
            "fetch.message.max.bytes": _RECORD_BYTES,
        }
    )

    stored_at: dict[Partition, int] = {}

    try:
        consumer.assign([TopicPartition(*partition, start) for partition, start in starts.items()])
        deadline = time.monotonic() + _OLDEST_S
        while len(stored_at) < len(starts) and time.monotonic() < deadline:
            message = consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue

            partition = str(message.topic()), int(message.partition() or 0)
            if partition not in stored_at:
                stored_at[partition] = int(message.timestamp()[1])
                consumer.pause([TopicPartition(*partition)])
    finally:
        consumer.close()
    return stored_at


def groups_without_topic(settings: Settings, groups: Iterable[str]) -> list[str]:
    """Returns the producer groups that have no check topic; none if no checks are ever sent.

    Errors: KafkaAwayError.
    """
    prefix = settings.kafka.check_topic_prefix
    check_topics = {group: check_topic(group, prefix) for group in groups}
    if not check_topics or settings.transaction.check_max == 0:
        return []

    topics = Cluster(settings.kafka.bootstrap_servers, settings.kafka.client).topics()
    return sorted(group for group, topic in check_topics.items() if topic not in topics)


def members_of(kafka: KafkaSettings, groups: Iterable[str]) -> dict[str, int]:
    """Returns how many producers of each producer group listen for checks.

    They are the members of the Kafka consumer group that has the name of the check topic. A group
    that Kafka does not know, or did not describe in time, is missing.
    Errors: KafkaAwayError.
    """
    readers = {check_topic(group, kafka.check_topic_prefix): group for group in groups}
    if not readers:
        return {}

    cluster = Cluster(kafka.bootstrap_servers, kafka.client)
    cluster.topics()  # raises the reason if Kafka is away, before groups are described

    members = {}
    replies = cluster.admin.describe_consumer_groups(
        sorted(readers), request_timeout=REQUEST_TIMEOUT_S
    )

    for name, future in replies.items():
        try:
            members[readers[name]] = len(future.result(timeout=REQUEST_TIMEOUT_S).members)
        except (KafkaException, FutureTimeoutError):
            continue
    return members
