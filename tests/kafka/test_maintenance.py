"""The real job keeps its tables in shape while it streams, and goes on from what it rewrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from storage.lake.lake import Lake
from storage.maintenance.merge import files_of
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S
from txlake import ConsumedMessage, Consumer
from txlake.protocol import COMMIT, MAINTAIN

TABLES = ("half", "op", "outcomes", "epochs", "topics/1")


def file_counts(job: Job) -> dict[str, int]:
    return {table: len(files_of(Lake(job.lake.path), table)) for table in TABLES}


def commit_one(job: Job, wire: KafkaWriter, name: str) -> None:
    """Commit a transaction in an epoch of its own; the name is the body."""
    before = len(job.messages("orders"))
    wire.end(COMMIT, wire.half(name, body=name.encode()))
    job.wait_for(lambda: len(job.messages("orders")) > before, name)


def is_whole(messages: list[ConsumedMessage], names: list[str]) -> bool:
    return sorted((m.body or b"").decode() for m in messages) == sorted(names)


def test_a_job_keeps_its_tables_in_shape_and_goes_on_from_them(
    broker: Broker,
    tmp_path: Path,
    unique: Callable[[str], str],
    spark: SparkSession,
) -> None:
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("maintenance"),
        lake={"pending_snapshot_epochs": 4},
        transaction={"transaction_timeout_ms": 600_000},
        maintenance={"merge_files": 3, "checkpoint_commits": 4},
    )
    wire = KafkaWriter(settings)
    names = [f"m{n}" for n in range(4)]
    with running(settings) as job:
        old = wire.half("old", body=b"old")
        commit_one(job, wire, names[0])
        with Consumer(job.lake.path, "group", ["orders"]) as consumer:
            seen = consumer.poll(DEADLINE_S)
            for name in names[1:]:
                commit_one(job, wire, name)
            job.wait_for(lambda: file_counts(job)["epochs"] < 2 * len(names), "merges by itself")
            wire.command(MAINTAIN, "")
            job.wait_for(lambda: set(file_counts(job).values()) == {1}, "a full round")
            assert [row["result"] for row in job.rows("admin") if row["command"] == MAINTAIN] == [
                "accepted"
            ]
            while len(seen) < len(names) and (more := consumer.poll(DEADLINE_S)):
                seen += more
        assert is_whole(seen, names)
    # Now tasks of Spark read the merged files, and what they write is merged.
    settings = replace(settings, stream=replace(settings.stream, deliveries="executors"))
    names += ["old", *(f"late{n}" for n in range(4))]
    with running(settings) as job:
        wire.end(COMMIT, old)
        for name in names[-4:]:
            commit_one(job, wire, name)
        job.wait_for(lambda: file_counts(job)["half"] < 4, "merges of what tasks wrote")
        with Consumer(job.lake.path, "late", ["orders"]) as consumer:
            seen = []
            while len(seen) < len(names) and (more := consumer.poll(DEADLINE_S)):
                seen += more
        assert is_whole(seen, names)
    table = spark.read.format("delta").load(job.lake.table_path("topics/1"))
    assert table.count() == len(names)
    assert table.where("transaction_id = 'old'").collect()[0]["body"] == b"old"
