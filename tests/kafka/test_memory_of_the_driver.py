"""What the driver holds of records with large bodies: some MiB, however many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from checker.frames import DUE
from pipelines.epoch.checks import KafkaCheckSender
from pipelines.kafka_client.record_reader import read_kafka
from pipelines.local_broker.broker import Broker
from pipelines.settings import KafkaSettings
from tests.support.in_memory_job import InMemoryJob
from tests.support.kafka_admin import admin_client
from tests.support.wait import DEADLINE_S

Unique = Callable[[str], str]
MIB = 1 << 20
BODY = b"z" * 900_000
COUNT = 120


def make_topic(broker: Broker, topic: str) -> None:
    admin = admin_client(broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)


def test_checks_with_large_bodies_do_not_add_up(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    prefix = unique("check-")
    make_topic(broker, f"{prefix}g")
    job = InMemoryJob(tmp_path / "lake")
    for number in range(COUNT):
        job.half(f"tx-{number}", body=b"%d" % number + BODY)
    job.run()
    due = [
        {
            "queue_id": 0,
            "queue_offset": number,
            "arm": 0,
            "check_times": 1,
            "producer_group": "g",
            "transaction_id": f"tx-{number}",
            "real_topic": "orders",
            "half_offsets": [number],
        }
        for number in range(COUNT)
    ]
    asker = KafkaCheckSender(broker.bootstrap_servers, {}, prefix, 60_000, MIB)

    tracemalloc.start()
    try:
        attempts = asker.ask(job.lake, pa.Table.from_pylist(due, schema=DUE))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        asker.close()
    assert attempts["acknowledged"].to_pylist() == [True] * COUNT
    print(f"of {COUNT * len(BODY) / MIB:.0f} MiB of bodies Python held {peak / MIB:.1f} at once")
    assert peak < 32 * MIB


def test_batches_of_records_end_by_their_bytes(broker: Broker, unique: Unique) -> None:
    topic = unique("plain")
    make_topic(broker, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"})
    for _ in range(COUNT):
        producer.produce(topic, BODY)
    assert producer.flush(DEADLINE_S) == 0

    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    batches = [
        (batch.num_rows, batch.nbytes) for batch in read_kafka(kafka, {(topic, 0): range(COUNT)})
    ]
    assert sum(rows for rows, _ in batches) == COUNT
    assert max(size for _, size in batches) < 10 * MIB
