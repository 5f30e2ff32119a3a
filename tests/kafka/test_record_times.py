"""A record with an impossible time stops no job: it is a row with its reason, and work goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from pyspark.sql import SparkSession

from pipelines.epoch.land import SparkLander
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.recover import reload_batch
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.wire.record_kinds import KINDS
from tests.support.job import running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter, half_headers
from tests.support.transactions import commit, wait_for_bodies
from tests.support.wait import DEADLINE_S, wait_until
from txlake import protocol as p

Unique = Callable[[str], str]
TIMES = (
    10**18,
    p.INSTANT_MS_MAX + 1,
)  # ms: more than Spark can count in us, after the last instant


def alter(settings: Settings, configs: Mapping[str, str]) -> None:
    """Change settings of all topics of a job."""
    admin = admin_client(settings.kafka.bootstrap_servers)
    changed = [
        ConfigResource(
            ResourceType.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in configs.items()
            ],
        )
        for topic in settings.kafka.topics().values()
    ]
    for future in admin.incremental_alter_configs(changed).values():
        future.result(DEADLINE_S)

    def are_known() -> bool:
        described = admin.describe_configs(changed)
        found = [future.result(DEADLINE_S) for future in described.values()]
        return all(one[name].value == value for one in found for name, value in configs.items())

    wait_until(are_known, "the broker knows them")


def write_at_impossible_times(settings: Settings) -> int:
    """Write readable records of each kind at each of the times. Return how many."""
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    headers = half_headers("tx", TRAN_TYPE="8", COMMAND=p.PING)
    errors: list[object] = []
    for topic in settings.kafka.topics().values():
        for at_ms in TIMES:
            producer.produce(
                topic,
                b"0",
                headers=headers,
                partition=0,
                timestamp=at_ms,
                on_delivery=lambda error, _: errors.append(error),
            )
    producer.flush(DEADLINE_S)
    assert errors == [None] * len(TIMES) * 4
    return len(errors)


def test_records_with_impossible_times_are_rows_with_their_reason(
    broker: Broker, tmp_path: Path, unique: Unique, spark: SparkSession
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("times"))
    wire = KafkaWriter(settings)
    widest = str(2**63 - 1)
    # The job looks at its topics now and then: it is to land these records.
    with running(settings, skip_checks=frozenset({"timestamp_type"})) as job:
        commit(wire, "before")
        wait_for_bodies(job, "before")
        alter(
            settings,
            {
                "message.timestamp.type": "CreateTime",
                "message.timestamp.after.max.ms": widest,
            },
        )
        count = write_at_impossible_times(settings)
        alter(settings, {"message.timestamp.type": "LogAppendTime"})
        commit(wire, "after")
        wait_for_bodies(job, "before", "after")
        rows = [row for kind in KINDS for row in job.rows(kind) if row["error"] is not None]
        assert {row["error"] for row in rows} == {"bad_timestamp"}
        assert len(rows) == count
    plans = [plan for plan in job.plans if any(r.to_offset > r.from_offset for r in plan.ranges)]
    scratch = Lake(str(tmp_path / "scratch"))
    for kind in KINDS:
        scratch.create_table(kind)
    lander = SparkLander(spark)
    of_job = EpochSettings.of(settings, "again", lander.parallelism)
    again = [reload_batch(lander, scratch, plan, of_job, dict) for plan in plans]
    landed = [batch.rows(kind)["error"].to_pylist() for batch in again for kind in KINDS]
    assert sum(errors.count("bad_timestamp") for errors in landed) == count
    with running(settings) as restarted:
        commit(wire, "after a restart")
        wait_for_bodies(restarted, "before", "after", "after a restart")
