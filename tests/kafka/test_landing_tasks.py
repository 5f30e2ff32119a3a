"""The shares of an epoch's records that its tasks land."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from tests.support.epoch_harness import EpochHarness
from tests.support.job import settings_for
from tests.support.wait import DEADLINE_S
from txlake import Message
from txlake._half import group_headers, message_headers

HALVES = 60_000


def test_two_tasks_share_the_records_of_one_queue(
    broker: Broker, spark: SparkSession, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """A queue's records are in both files, about half of them in each, and each once."""
    settings = settings_for(broker, tmp_path / "lake", unique("shares"))
    group, now_ms = group_headers("shop"), time.time_ns() // 1_000_000
    with EpochHarness(spark, settings) as rig:
        rig.start()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
        for number in range(HALVES):
            headers = message_headers(Message("orders", b""), group, f"t{number}", now_ms)
            producer.produce(settings.kafka.half_topic, b"{}", partition=0, headers=headers)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        assert rig.run(time.time_ns() // 1_000_000) is not None
        offsets = rig.lake.read("half", ["queue_offset"])["queue_offset"].to_pylist()
    shares = [
        pq.read_metadata(file).num_rows for file in (tmp_path / "lake/half").glob("*.parquet")
    ]
    assert sorted(offsets) == list(range(HALVES))
    assert sum(shares) == HALVES
    assert len(shares) == 2
    assert max(shares) <= 1.5 * min(shares), shares
