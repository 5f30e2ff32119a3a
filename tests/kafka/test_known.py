"""How far the halves of a queue are known, where a queue has operations and no halves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from tests.support.epoch_harness import EpochHarness
from tests.support.job import settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S
from txlake.protocol import COMMIT, PING

TTL_MS = 5_000


def test_the_halves_of_an_op_queue_without_a_half_queue_are_known_until_t(
    broker: Broker, spark: SparkSession, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """So an operation there is an orphan when it has waited for too long, and not before."""
    settings = settings_for(
        broker, tmp_path / "lake", unique("known"), transaction={"orphan_operation_ttl_ms": TTL_MS}
    )
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    topic = NewTopic(settings.kafka.op_topic, settings.kafka.queues + 1, config=config)
    admin = admin_client(broker.bootstrap_servers)
    for future in admin.create_topics([topic]).values():
        future.result(DEADLINE_S)
    wire = KafkaWriter(settings)
    at_ms = int(time.time() * 1000) + 600_000  # ahead of when the broker stores, however slow
    with EpochHarness(spark, settings) as rig:
        rig.start()
        wire.end(COMMIT, 0, queue=settings.kafka.queues)
        reasons = []
        for waited_ms in (0, TTL_MS, TTL_MS + 1):
            wire.command(PING, "")
            assert rig.run(at_ms + waited_ms) is not None
            reasons.append([row["reason"] for row in rig.lake.read("conflicts").to_pylist()])
    assert reasons == [[], [], ["orphan_expired"]]
