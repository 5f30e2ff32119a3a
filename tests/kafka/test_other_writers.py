"""Others at the lake's tables: OPTIMIZE and VACUUM disturb neither the job nor readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from storage.lake.lake import Lake
from tests.support.job import running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.transactions import commit, wait_for_bodies
from tests.support.wait import DEADLINE_S
from txlake import Consumer

Unique = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session
TABLES = ("half", "outcomes", "epochs", "topics/1")


def optimize_by_delta_rs(spark: SparkSession, path: str) -> None:
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(dry_run=False)


def optimize_by_spark(spark: SparkSession, path: str) -> None:
    # VACUUM lists folders in so many tasks: 10,000 by default, which takes a minute.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    spark.sql(f"VACUUM delta.`{path}`").collect()


@pytest.mark.parametrize(
    ("optimize", "tables"),
    [(optimize_by_delta_rs, TABLES), (optimize_by_spark, ("outcomes", "topics/1"))],
)
def test_optimize_and_vacuum_disturb_neither_the_job_nor_readers(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    spark: SparkSession,
    optimize: Callable[[SparkSession, str], None],
    tables: Sequence[str],
) -> None:
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("optimize"),
        lake={"pending_snapshot_epochs": 3},
        stream={"trigger_interval_ms": 1_000},
    )
    wire = KafkaWriter(settings)
    names = []
    with running(settings) as job:
        for n in range(2):
            names.append(f"early {n}")
            commit(wire, names[-1])
            wait_for_bodies(job, *names)
        path = job.lake.table_path("topics/1")
        early = DeltaTable(path).to_pyarrow_dataset()  # a reader that takes its time
        reader = early.to_batches(columns=["body"])
        first = next(reader)
        with Consumer(job.lake.path, "group", ["orders"]) as consumer:
            seen = consumer.poll(DEADLINE_S, max_records=1)
            for n in range(2):
                names.append(f"late {n}")
                commit(wire, names[-1])
                for table in tables:
                    optimize(spark, job.lake.table_path(table))
            wait_for_bodies(job, *names)
            while len(seen) < len(names) and (more := consumer.poll(DEADLINE_S)):
                seen += more
        places = Counter((m.queue_id, m.queue_offset) for m in seen)
        assert sorted((m.body or b"").decode() for m in seen) == sorted(names)
        assert set(places.values()) == {1}
        left = [body for batch in reader for body in batch["body"].to_pylist()]
        assert len(left) + first.num_rows == 2
        metrics = [entry["operation"] for entry in DeltaTable(path).history()]
        assert "OPTIMIZE" in metrics
    with running(settings) as job:  # from tables that were rewritten
        names.append("after a restart")
        commit(wire, names[-1])
        wait_for_bodies(job, *names)
    assert Lake(settings.lake.path).max_value("epochs", "epoch") == job.driver.epochs.last.epoch  # type: ignore[union-attr]
