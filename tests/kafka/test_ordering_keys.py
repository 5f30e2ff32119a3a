"""Messages of one ordering key: one queue, in the order of their commits, also when queues grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from pipelines.local_broker.broker import Broker
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.producers import options_of
from tests.support.transaction_topics import TransactionTopics
from tests.support.wait import DEADLINE_S
from txlake import LakeQueueCounts, LocalTransactionState, Message, Producer, TransactionProducer
from txlake.ordering import queue_for_key
from txlake.protocol import CREATE_TOPIC

KEYS = [f"c-{number}" for number in range(40)] + ["ä", "名", "k" * 300]


def test_a_key_is_where_kafkas_own_partitioner_puts_it(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topics = TransactionTopics(broker.bootstrap_servers, unique("murmur2"), partitions=7)
    producer = KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2"}
    )
    for key in KEYS:
        producer.produce(topics.half, key=key.encode(), value=key.encode())
    producer.flush(DEADLINE_S)

    partitions = {(r.body or b"").decode(): r.partition for r in topics.records(topics.half)}
    assert partitions == {key: queue_for_key(key, 7) for key in KEYS}
    assert len(set(partitions.values())) == 7


@pytest.mark.usefixtures("spark")
def test_the_messages_of_a_key_are_in_one_queue_in_order_and_move_together_when_queues_grow(
    broker: Broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("keys"))

    with running(settings) as job:
        wire = KafkaWriter(settings)
        wire.command(CREATE_TOPIC, "topic:orders:2")
        job.wait_for(lambda: queue_counts(job) == {"orders": 2}, "the topic")

        counts = LakeQueueCounts(job.lake.path, refresh_ms=0)
        server, options = broker.bootstrap_servers, options_of(settings)
        with (
            TransactionProducer(server, "shop", options=options, queue_counts=counts) as first,
            TransactionProducer(server, "till", options=options, queue_counts=counts) as second,
            Producer(server, options=options, queue_counts=counts) as plain,
        ):
            for number in range(3):
                send_all([first, second], number)
            job.wait_for(lambda: len(job.messages("orders")) == 3 * len(KEYS), "three of a key")

            wire.command(CREATE_TOPIC, "topic:orders:8")
            job.wait_for(lambda: queue_counts(job) == {"orders": 8}, "more queues")

            for number in range(3, 6):
                send_all([first, second], number)
            # A message of a Producer has no common order with transactions that are not delivered.
            job.wait_for(lambda: len(job.messages("orders")) == 6 * len(KEYS), "six of a key")
            plain.send(Message("orders", b"6", keys="c-7", ordering_key="c-7"))
            job.wait_for(lambda: len(job.messages("orders")) == 6 * len(KEYS) + 1, "all")

        messages = sorted(job.messages("orders"), key=lambda row: row["epoch"])

    by_key = defaultdict[str, list[dict[str, Any]]](list)
    for row in messages:
        by_key[row["keys"]].append(row)

    for key in KEYS:
        before, after, late = by_key[key][:3], by_key[key][3:6], by_key[key][6:]
        for rows, numbers, count in (
            (before, [b"0", b"1", b"2"], 2),
            (after, [b"3", b"4", b"5"], 8),
            (late, [b"6"] if key == "c-7" else [], 8),
        ):
            assert {row["queue_id"] for row in rows} <= {queue_for_key(key, count)}
            in_order = sorted(rows, key=lambda row: row["queue_offset"])
            assert [row["body"] for row in in_order] == numbers


def send_all(producers: list[TransactionProducer], number: int) -> None:
    """Sends a message of each key, by one producer after the other."""

    def commit(_half: Any, _arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    for turn, key in enumerate(KEYS):
        producer = producers[(turn + number) % len(producers)]
        message = Message("orders", b"%d" % number, keys=key, ordering_key=key)
        producer.send_message_in_transaction(message, execute=commit)


def queue_counts(job: Job) -> dict[str, int]:
    """Returns the number of queues of each topic, by the job's catalog."""
    counts: dict[str, int] = {}
    if job.lake.exists():
        for row in job.rows("catalog"):
            counts[row["topic"]] = max(row["queue_count"], counts.get(row["topic"], 0))
    return counts
