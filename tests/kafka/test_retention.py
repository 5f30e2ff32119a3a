"""The real job forgets what ended long ago, keeps what has not, and goes on from what is left."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from pipelines.replay import rebuild
from pipelines.replay import verify as run_again
from storage.lake.progress import read_progress
from storage.verify.run import verify
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S
from txlake import Consumer, OffsetOutOfRangeError
from txlake.protocol import ALTER_TOPIC, COMMIT, DELIVER_AT

RETENTION_MS = 3_000
LATER_MS = 25_000  # far beyond twice the retention
APART_S = 1.5  # records of one eighth of the retention go together
_OFFSETS: dict[KafkaWriter, Iterator[int]] = defaultdict(itertools.count)  # of the half queue


def test_a_job_deletes_what_is_old_and_an_operation_that_comes_later_finds_nothing(
    broker: Broker, tmp_path: Path, unique: Callable[[str], str], spark: SparkSession
) -> None:
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("retention"),
        lake={"retention_ms": RETENTION_MS, "pending_snapshot_epochs": 2},
        transaction={"half_retention_ms": RETENTION_MS},
        maintenance={"merge_files": 2},
    )
    wire = KafkaWriter(settings)
    due = str(time.time_ns() // 1_000_000 + LATER_MS)
    with running(settings) as job:
        first = commit(wire, "first")
        job.wait_for(lambda: "first" in delivered(job), "the first message")
        began = time.monotonic()
        live_until(job, wire, lambda: time.monotonic() - began > APART_S)
        commit(wire, "waits", body=b"its body", **{DELIVER_AT: due})
        live_until(job, wire, lambda: "first" not in halves(job))
        assert "waits" in halves(job) or "waits" in delivered(job), "it is needed until then"
        wire.end(COMMIT, first)
        (conflict,) = job.wait_for(lambda: job.rows("conflicts"), "a word on what came late")
        assert (conflict["reason"], conflict["half_queue_offset"]) == ("below_floor", first)
        assert "first" in delivered(job)
    with running(settings) as job:  # from what is left
        job.wait_for(lambda: "waits" in delivered(job), "what waited")
        assert delivered(job)["waits"] == b"its body"
        live_until(job, wire, lambda: "waits" not in halves(job))
        with Consumer(job.lake.path, "early", ["orders"]) as consumer:
            consumer.poll(0.0, max_records=1)
            consumer.commit()
        wire.command(ALTER_TOPIC, "config:orders:retention.ms=1")
        live_until(job, wire, lambda: not {"first", "waits"} & delivered(job).keys())
    assert run_again(job.lake.path).is_equal
    assert [f.invariant.name for f in verify(job.lake).findings if f.violations] == []
    gone = pytest.raises(OffsetOutOfRangeError, match=r"position \d, and the queue begins at")
    with Consumer(job.lake.path, "early", ["orders"]) as consumer, gone:
        consumer.poll(0.0)
    with Consumer(job.lake.path, "late", ["orders"]) as consumer:
        there = {message.transaction_id for message in consumer.poll(0.0)}
    assert there <= delivered(job).keys()
    go_on_rebuilt(job, wire, tmp_path / "new")


def go_on_rebuilt(job: Job, wire: KafkaWriter, path: Path) -> None:
    """Make a job's lake anew from its floor, and let the job go on in the new one."""
    progress = read_progress(job.lake)
    assert progress.last is not None
    done = rebuild(job.lake.path, str(path))
    assert done.floor_epoch == progress.last.floor.epoch > 0
    settings = replace(job.settings, lake=replace(job.settings.lake, path=str(path)))
    with running(settings) as again:
        assert again.lake.lake_id() != job.lake.lake_id()
        commit(wire, "rebuilt")
        again.wait_for(lambda: "rebuilt" in delivered(again), "a message in the new lake")
        (row,) = [row for row in again.rows("topics/1") if row["transaction_id"] == "rebuilt"]
        assert row["queue_offset"] == progress.next_offsets["orders", row["queue_id"]]
    assert run_again(str(path)).is_equal


def halves(job: Job) -> set[str]:
    """Return the transactions whose half records are there."""
    return {row["transaction_id"] for row in job.rows("half", ["transaction_id"])}


def delivered(job: Job) -> dict[str, bytes]:
    """Return the bodies in the topic's table by transaction, whatever became of their epochs."""
    if not job.lake.exists() or not job.lake.is_table("topics/1"):
        return {}
    return {row["transaction_id"]: row["body"] for row in job.rows("topics/1")}


def commit(wire: KafkaWriter, name: str, **extra: Any) -> int:
    """Send a transaction whose COMMIT is there first: what waits for it here is soon given up."""
    offset = next(_OFFSETS[wire])
    wire.end(COMMIT, offset, ids=[name])
    assert wire.half(name, **extra) == offset
    return offset


def live_until(job: Job, wire: KafkaWriter, is_met: Callable[[], bool]) -> None:
    """Commit transactions, an epoch at least after each, until a condition is met."""
    end = time.monotonic() + DEADLINE_S
    while not is_met():
        assert time.monotonic() < end, halves(job)
        before = len(job.plans)
        commit(wire, f"more-at-{time.monotonic_ns()}")
        job.wait_for(lambda before=before: len(job.plans) > before, "an epoch")
