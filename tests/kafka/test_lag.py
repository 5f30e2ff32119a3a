"""A job that lags never asks about, and never gives up, what was ended in Kafka long ago."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from checker.frames import COMMITTED, ROLLED_BACK
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import half_headers
from tests.support.wait import DEADLINE_S, wait_until
from txlake import protocol as p

Unique = Callable[[str], str]
HALVES_PER_QUEUE = 20_000
ENDS_PER_OPERATION = 20


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The job uses the run's one Spark session."""


def _fill(settings: Settings) -> None:
    """Send 40,000 halves and the operations that end them: every 50th is rolled back."""
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    for queue in range(settings.kafka.queues):
        for n in range(HALVES_PER_QUEUE):
            producer.produce(
                settings.kafka.half_topic,
                b"%d" % n,
                partition=queue,
                headers=half_headers(f"tx-{queue}-{n}"),
            )
            if n % 10_000 == 0:
                producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    for queue in range(settings.kafka.queues):
        for first in range(0, HALVES_PER_QUEUE, ENDS_PER_OPERATION):
            offsets = range(first, first + ENDS_PER_OPERATION)
            rolled_back = [n for n in offsets if n % 50 == 0]
            ends = {p.COMMIT: [n for n in offsets if n % 50], p.ROLLBACK: rolled_back}
            for decision, named in ends.items():
                if named:
                    ids = [f"tx-{queue}-{n}" for n in named]
                    producer.produce(
                        settings.kafka.op_topic,
                        p.operation_body(named),
                        partition=queue,
                        headers=list(p.operation_headers("g", decision, ids)),
                    )
    assert producer.flush(DEADLINE_S) == 0


def test_halves_that_were_ended_are_neither_asked_about_nor_given_up(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("lag"), stream={"max_offsets_per_trigger": 6_000}
    )
    Job(settings).prepare_topics()
    _fill(settings)
    due_at = time.time() + 2 * settings.transaction.transaction_timeout_ms / 1000
    wait_until(lambda: time.time() > due_at, "a check of each half would be due")
    whole = HALVES_PER_QUEUE * settings.kafka.queues
    with running(settings) as job:
        job.wait_for(
            lambda: job.lake.read("outcomes", ["queue_id"]).num_rows >= whole, "all ends", 300
        )
        outcomes = collections.Counter(job.lake.read("outcomes")["outcome"].to_pylist())
        assert outcomes == {COMMITTED: whole * 49 // 50, ROLLED_BACK: whole // 50}
        assert job.lake.read("checks").num_rows == 0
        assert job.lake.read("conflicts").num_rows == 0
        epochs = job.lake.read("epochs", ["epoch", "state", "ranges"])
        landing = [
            row
            for row in epochs.to_pylist()
            if row["ranges"] and any(r["to_offset"] > r["from_offset"] for r in row["ranges"])
        ]
        assert len(landing) >= 5, "the log was landed in several epochs"
        assert any(r["end_offset"] > r["to_offset"] for row in landing for r in row["ranges"]), (
            "the job lagged"
        )
