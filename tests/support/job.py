"""Run the real job inside the test process: one Spark session, one driver at a time."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from checker.frames import State
from pipelines.epoch.recorded_state import restore
from pipelines.job.driver import Driver
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings, parse
from storage.errors import LakeError
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.rows import milliseconds
from storage.verify.run import verify
from tests.support.topic_names import topics_named
from tests.support.wait import DEADLINE_S, wait_until

# Short spans, so that a test sees a half through its whole life in seconds.
QUICK = {"transaction_timeout_ms": 1_000, "check_interval_ms": 1_000, "ask_timeout_ms": 2_000}
# Where rows say what Kafka has confirmed: a busy broker may take longer than QUICK lets it.
PATIENT = {"ask_timeout_ms": 60_000}


def settings_for(
    broker: Broker, lake_path: Path, name: str, **sections: dict[str, Any]
) -> Settings:
    """Return settings of a job with topics of its own on a shared broker."""
    kafka = {
        "bootstrap_servers": broker.bootstrap_servers,
        **topics_named(name),
        "queues": 2,
    }
    values: dict[str, dict[str, Any]] = {
        "lake": {"path": str(lake_path)},
        "kafka": kafka,
        "transaction": dict(QUICK),
        # An idle job takes 0.22 cores at 200 ms and 0.12 at 400; three run at once.
        "stream": {"trigger_interval_ms": 400},
    }

    for section, extra in sections.items():
        values[section] = {**values.get(section, {}), **extra}

    return parse(values, "test")


class Job:
    """A driver in a thread, and its lake."""

    def __init__(self, settings: Settings, **driver_options: Any) -> None:
        self.settings = settings
        self.lake = Lake(settings.lake.path)
        self.plans: list[Plan] = []
        self.error: BaseException | None = None
        self.driver = Driver(
            settings, on_epoch=lambda plan, _: self.plans.append(plan), **driver_options
        )
        self._thread = threading.Thread(target=self._run, name="job")

    def _run(self) -> None:
        try:
            self.driver.run()
        except BaseException as error:
            self.error = error

    def begin(self) -> None:
        """Start the driver and do not wait for anything."""
        self._thread.start()

    def start(self) -> Job:
        """Start the driver and wait until its stream runs, or it has failed."""
        self.begin()
        wait_until(
            lambda: self.driver.is_streaming or not self._thread.is_alive(), "the job streams"
        )
        return self

    def prepare_topics(self) -> None:
        """Make the job's Kafka topics, so that records wait for its start."""
        KafkaAdmin(self.settings, self.settings.kafka.topics()).create_missing()

    def wait_until_dead(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until the driver has ended."""
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            frame = sys._current_frames()[self._thread.ident or 0]
            raise AssertionError("the job still runs:\n" + "".join(traceback.format_stack(frame)))

    def is_running(self) -> bool:
        """Return whether the driver still runs."""
        return self._thread.is_alive()

    def rows(self, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Read a table as plain rows; instants in ms."""
        rows = Lake(self.settings.lake.path).read(table, columns)
        plain: list[dict[str, Any]] = rows.to_pylist()
        for name in [f.name for f in rows.schema if pa.types.is_timestamp(f.type)]:
            for row in plain:
                row[name] = None if row[name] is None else milliseconds(row[name])
        return plain

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Read a real topic in queue order; none while it does not exist.

        Only messages of committed epochs: what else an epoch writes is there then, too.
        """
        if not self.lake.exists():
            return []

        ids = {row["topic"]: row["table_id"] for row in self.rows("catalog")}
        if topic not in ids:
            return []

        try:
            rows = self.rows(f"topics/{ids[topic]}")
        except TableNotFoundError:  # the catalog's row comes first
            return []

        states = self.rows("epochs", ["epoch", "state"])
        committed = {row["epoch"] for row in states if row["state"] == "committed"}
        rows = [row for row in rows if row["epoch"] in committed]

        return sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))

    def wait_for(self, is_met: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for something in the lake; fail at once when the job has failed."""

        def look() -> Any:
            if self.error is not None:
                failed = f"the job failed while waiting for {what}: {self.error!r}"
                raise AssertionError(failed[:500]) from self.error
            return is_met()

        return wait_until(look, what, deadline_s, seen=lambda: [p.epoch for p in self.plans][-3:])

    def wait_for_rows(self, table: str, count: int) -> list[dict[str, Any]]:
        """Wait until a table has so many rows, and give them."""
        self.wait_for(
            lambda: Lake(self.settings.lake.path).read(table).num_rows >= count,
            f"{count} rows in {table}",
        )
        return self.rows(table)

    def stop(self, *, verifies: bool = True) -> None:
        """Stop cleanly, and check the lake: its state can be rebuilt, its invariants hold.

        Without `verifies` only the state is compared: for a job that met no fault and no other one,
        whose invariants test_job.py and its neighbours show. They take a second.
        """
        self.driver.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the job did not stop"
        if self.error is None:
            self.check_restored_state()
        if verifies or self.error is not None:
            self.check_lake()

    def check_restored_state(self) -> None:
        """Compare the state in memory with the one rebuilt from the tables."""
        epochs = self.driver.epochs
        assert epochs is not None
        lake = Lake(self.settings.lake.path)
        rebuilt = restore(lake, read_progress(lake))
        assert plain_state(rebuilt) == plain_state(epochs.state)

    def check_lake(self) -> None:
        """Check the lake's invariants; a job that could not start may have made none."""
        try:
            report = verify(Lake(self.settings.lake.path))
        except LakeError:
            assert self.error is not None
            return
        assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


def live_query(spark: SparkSession) -> StreamingQuery:
    """Return the one query that runs; those that Spark could not end are listed beside it."""
    (query,) = (query for query in spark.streams.active if query.isActive)
    return query


def plain_state(state: State) -> dict[str, list[Any]]:
    """Return a state as sorted plain rows."""
    return {
        name: sorted(getattr(state, name).to_pylist(), key=repr)
        for name in ("halves", "waiting", "delayed", "topics", "next_offsets")
    }


@contextmanager
def running(settings: Settings, *, verifies: bool = True, **driver_options: Any) -> Iterator[Job]:
    """Run a job for the length of a block; an error of the job fails the test.

    Input: `verifies`: as `Job.stop` takes it.
    """
    job = Job(settings, **driver_options).start()
    try:
        yield job
    finally:
        job.stop(verifies=verifies)
    if job.error is not None:
        raise job.error


def refusal(settings: Settings) -> BaseException:
    """Return the error with which a start is refused: one sentence."""
    job = Job(settings)
    job.begin()
    try:
        wait_until(lambda: not job.is_running(), "the refusal")
    finally:
        job.driver.stop()
    job.wait_until_dead()
    assert job.error is not None
    assert "\n" not in str(job.error)
    return job.error
