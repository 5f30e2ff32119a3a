"""The whole job, epoch by epoch: a restart, reading ahead, what Spark shows of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.epoch.runner import EpochRunner, LandedBatch, PlannedEpoch, StepTimer
from pipelines.job.stream import QUERY_NAME, Stream
from pipelines.kafka_client.connection import Partition
from pipelines.local_broker.broker import Broker
from pipelines.replay.verification import verify as replay_verified
from storage.lake.aging import advance_floor
from storage.lake.epochs import Plan
from storage.lake.floor import Floor
from storage.lake.lake import Lake
from storage.schemas import STATE_TABLES
from tests.support.epoch_harness import EpochHarness
from tests.support.job import Job, live_query, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
)

Unique = Callable[[str], str]
DELAYED = 40
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session


def outcomes(job: Job) -> dict[tuple[int, int], tuple[str, str]]:
    return {
        (row["queue_id"], row["queue_offset"]): (row["outcome"], row["cause"])
        for row in job.rows("outcomes")
    }


def test_a_job_started_again_goes_on_where_the_lake_ends(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("again"), lake={"pending_snapshot_epochs": 2}
    )
    wire = KafkaWriter(settings)
    with running(settings) as job:
        first = wire.half("a")
        wire.half("b")
        wire.end(UNKNOWN, 1)
        wire.end(COMMIT, first)
        wire.end(COMMIT, 77)  # names a half that is not there yet
        job.wait_for(lambda: job.messages("orders"), "the first message")
    with running(settings) as job:
        wire.end(COMMIT, 1)
        wire.end(ROLLBACK, first)
        job.wait_for(lambda: len(job.messages("orders")) == 2, "the second message")
        job.wait_for_rows("conflicts", 1)
    assert outcomes(job) == {(0, 0): ("COMMITTED", "operation"), (0, 1): ("COMMITTED", "operation")}
    assert [row["reason"] for row in job.rows("conflicts")] == ["conflicting_end"]
    epochs = [row["epoch"] for row in job.rows("epochs") if row["state"] == "committed"]
    assert sorted(epochs) == list(range(1, len(epochs) + 1))


def test_an_idle_job_does_not_read_the_lake_for_its_floor(
    broker: Broker, tmp_path: Path, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Plan] = []

    def advancing(lake: Lake, last: Plan, until_ms: int) -> Floor:
        looks.append(last)
        return advance_floor(lake, last, until_ms)

    monkeypatch.setattr("pipelines.epoch.runner.advance_floor", advancing)
    settings = settings_for(
        broker, tmp_path / "lake", unique("idle"), lake={"pending_snapshot_epochs": 2}
    )
    wire = KafkaWriter(settings)
    at = int(time.time() * 1000) + 600_000

    with EpochHarness(None, settings) as harness:
        harness.start()
        wire.end(COMMIT, wire.half("a"))
        assert harness.run(at) is not None

        assert [harness.run(at + tick) for tick in range(1, 6)] == [None] * 5
        assert looks == []

        wire.end(COMMIT, wire.half("b"))
        plan = harness.run(at + 6)
        assert plan is not None
        assert [last.epoch for last in looks] == [1]
        assert plan.snapshot.epoch == plan.epoch == 2


def test_a_backlog_is_read_ahead_and_its_epochs_stay_one_after_another(
    broker: Broker, tmp_path: Path, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, land_batch = EpochRunner.finish, EpochRunner.land_batch
    landed: list[StepTimer] = []

    def land(epochs: EpochRunner, ends: Mapping[Partition, int]) -> LandedBatch:
        batch = land_batch(epochs, ends)
        landed.append(batch.timer)
        return batch

    def finish_later(epochs: EpochRunner, epoch: PlannedEpoch) -> None:
        """Finish the first epoch when the second one is read, however long Spark takes for it."""
        if epoch.plan.epoch == 1:
            wait_until(lambda: landed[-1] is not epoch.timer, "the next one is read")
        finish(epochs, epoch)

    monkeypatch.setattr(EpochRunner, "land_batch", land)
    monkeypatch.setattr(EpochRunner, "finish", finish_later)
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("ahead"),
        stream={"trigger_interval_ms": 1, "max_offsets_per_trigger": 40},
    )
    job = Job(settings)
    job.prepare_topics()
    wire = KafkaWriter(settings)
    for n in range(200):
        offset = wire.half(f"tx{n}", n % 2, b"body %d" % n)
        wire.end(ROLLBACK if n % 10 == 3 else COMMIT, offset, queue=n % 2, ids=[f"tx{n}"])
    job.start()
    try:
        job.wait_for(lambda: len(job.messages("orders")) == 180, "all that was committed")
    finally:
        job.stop()
    assert job.error is None
    rows = job.rows("epochs")
    planned = {row["epoch"]: row for row in rows if row["state"] == "planned"}
    committed = {row["epoch"]: row for row in rows if row["state"] == "committed"}
    ahead = 0
    for epoch in range(2, max(committed) + 1):
        before_ms = committed[epoch - 1]["written_at"]
        steps = dict(committed[epoch]["step_ms"])
        # Planned after the commit of the one before, and gathered from before it.
        assert planned[epoch]["written_at"] >= before_ms
        ahead += planned[epoch]["written_at"] - steps["wait"] - steps["gather"] < before_ms
    assert ahead > 0, "no micro-batch was read while the epoch before was being finished"


def test_what_spark_shows_agrees_with_the_lake(
    broker: Broker, tmp_path: Path, unique: Unique, spark: SparkSession
) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("shown"), stream={"deliveries": "executors"}
    )
    with running(settings) as job:
        wire = KafkaWriter(settings)
        for n in range(7):
            wire.end(COMMIT, wire.half(f"tx{n}", n % 2), queue=n % 2)
        job.wait_for(lambda: len(job.messages("orders")) == 7, "seven messages")
        query = live_query(spark)
        assert query.name.startswith(QUERY_NAME)

        def read() -> int:
            sources = (query.lastProgress or {"sources": []})["sources"]
            kafka = [source for source in sources if "Kafka" in source["description"]]
            ends = [json.loads(source["endOffset"]) for source in kafka]
            return sum(offset for end in ends for of in end.values() for offset in of.values())

        def landed() -> int:
            return sum(len(job.rows(table)) for table in ("half", "op", "schedule", "admin"))

        job.wait_for(lambda: read() == landed() >= 14, "Spark's own offsets")
        epochs = {
            row["epoch"]: dict(row["work"] or ())
            for row in job.rows("epochs")
            if row["state"] == "committed"
        }
    store = spark.sparkContext._jsc.sc().statusStore()  # type: ignore[union-attr]

    def missing() -> set[str]:
        """Return what Spark does not show: it hears of its own jobs a moment later."""
        jobs = store.jobsList(None)
        described = [jobs.apply(n).description() for n in range(jobs.size())]
        return expected - {found.get() for found in described if found.isDefined()}

    expected = {
        f"epoch {epoch}: land, {work['landed_tasks']} tasks"
        for epoch, work in epochs.items()
        if work["landed_tasks"]
    }
    expected |= {
        f"epoch {epoch}: deliver, 1 task"
        for epoch, work in epochs.items()
        if work["delivered_tasks"]
    }
    wait_until(lambda: not missing(), "Spark shows all", seen=missing)
    assert any(work["landed_tasks"] and work["landed_bytes"] for work in epochs.values())


def test_a_large_state_in_which_little_changes_has_few_snapshots(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("few"), lake={"pending_snapshot_epochs": 2}
    )
    wire = KafkaWriter(settings)

    def one_more(job: Job, number: int) -> None:
        wire.half(f"more-{number}")
        job.wait_for_rows("half", DELAYED + number + 1)

    with running(settings) as job:
        for n in range(DELAYED):
            wire.end(COMMIT, wire.half(f"late-{n}", DELAY="18"))
        job.wait_for(lambda: len(state_rows(job, "put")) >= DELAYED, "all that wait for 2 h")
        for number in range(8):
            one_more(job, number)
    with running(settings) as job:
        for number in range(8, 16):
            one_more(job, number)
    named = {
        row["epoch"]: dict(row["counts"])["snapshot"]
        for row in job.rows("epochs")
        if row["state"] == "committed" and "snapshot" in dict(row["counts"])
    }
    assert set(named) == set(range(2, max(named) + 1, 2)), "every second row names all"
    assert set(named.values()) == {0, 1}, "few of them took a snapshot"
    snapshots = {row["epoch"] for row in state_rows(job, "snapshot")}
    assert snapshots <= {epoch for epoch, taken in named.items() if taken}
    changes = state_rows(job, "put") + state_rows(job, "left")
    assert len(state_rows(job, "snapshot")) <= 4 * len(changes)
    for plan in [row for row in job.rows("epochs") if row["state"] == "planned"]:
        newest = json.loads(dict(plan["parameters"])["snapshot"])
        since = [row for row in changes if newest["epoch"] < row["epoch"] < plan["epoch"]]
        assert newest["changes"] == len(since), "counted over the restart, too"
    assert replay_verified(job.lake).is_equal
    held = max(job.rows("epochs"), key=lambda row: (row["epoch"], row["state"] == "committed"))
    work = dict(held["work"])
    assert work["state_rows"] == DELAYED + 16
    assert work["state_bytes"] < 300 * work["state_rows"]


def state_rows(job: Job, change: str) -> list[dict[str, Any]]:
    """Return the rows of all tables of the state that say so."""
    rows = [row for table in STATE_TABLES for row in job.rows(table, ["change", "epoch"])]
    return [row for row in rows if row["change"] == change]


def test_an_epoch_that_fails_between_two_micro_batches_ends_the_job(
    broker: Broker, tmp_path: Path, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A micro-batch returns before its epoch has ended: nobody is there to take the error.
    has_begun, has_returned, has_failed = (threading.Event() for _ in range(3))
    finished, looked_ahead = Stream._finish, EpochRunner.prefetch_end_offsets

    def finish(stream: Stream, plan: Plan | None, *arguments: Any) -> None:
        if plan is not None:
            has_begun.set()
            assert has_returned.wait(DEADLINE_S)
        try:
            finished(stream, plan, *arguments)
        finally:
            if plan is not None:
                has_failed.set()

    def look_ahead(epochs: EpochRunner) -> None:
        looked_ahead(epochs)
        if has_begun.is_set():
            has_returned.set()
            assert has_failed.wait(DEADLINE_S)

    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Stream, "_finish", finish)
    monkeypatch.setattr(EpochRunner, "prefetch_end_offsets", look_ahead)
    monkeypatch.setattr(EpochRunner, "finish", fail)
    settings = settings_for(broker, tmp_path / "lake", unique("between"))
    job = Job(settings).start()
    try:
        KafkaWriter(settings).half("a")
        job.wait_until_dead()
    finally:
        job.stop()
    assert "planted" in str(job.error)
