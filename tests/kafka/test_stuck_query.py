"""A query that Spark cannot end, since Kafka's Java client in it does not: the job goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession

from pipelines.epoch.run import Epochs
from pipelines.job import stream
from pipelines.job.stream import QUERY_NAME
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from tests.support.job import Job, live_query, running, settings_for, wait_until
from tests.support.stuck_client import stuck
from tests.support.wire import Wire
from txlake.protocol import COMMIT

Unique = Callable[[str], str]
LEFT = f"Spark cannot end the query {QUERY_NAME}"


@pytest.fixture
def settings(broker: Broker, tmp_path: Path, unique: Unique) -> Settings:
    return settings_for(broker, tmp_path / "lake", unique("stuck"))


@pytest.fixture
def earlier(spark: SparkSession) -> frozenset[str]:
    """Return the runs that tests before have left: this file's own matter is real at times."""
    return frozenset(query.runId for query in spark.streams.active)


@pytest.fixture(autouse=True)
def quick_stop(spark: SparkSession) -> Iterator[None]:
    """Spark tries for 30 s to end a query."""
    name = "spark.sql.streaming.stopTimeout"
    before = spark.conf.get(name)
    spark.conf.set(name, "1s")
    yield
    spark.conf.set(name, before)


def runs(spark: SparkSession) -> set[str]:
    return {query.runId for query in spark.streams.active}


def test_a_query_that_is_left_behind_does_not_keep_the_next_from_starting(
    settings: Settings,
    spark: SparkSession,
    earlier: frozenset[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire = Wire(settings)
    with ExitStack() as until_then:
        with running(settings) as job:
            wire.end(COMMIT, wire.half("first"), ids=["first"])
            job.wait_for(lambda: len(job.messages("orders")) == 1, "the first message")
            query = live_query(spark)
            until_then.enter_context(stuck(query))
        assert LEFT in caplog.text
        with running(settings) as job:
            wire.end(COMMIT, wire.half("second"), ids=["second"])
            job.wait_for(lambda: len(job.messages("orders")) == 2, "the second message")
            assert live_query(spark).name != query.name
    wait_until(lambda: runs(spark) <= earlier, "both queries have ended", seen=lambda: runs(spark))


def test_a_query_that_fails_and_does_not_end_ends_the_job(
    settings: Settings,
    spark: SparkSession,
    earlier: frozenset[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> NoReturn:
        raise RuntimeError("this epoch cannot be gathered")

    wire = Wire(settings)
    job = Job(settings).start()
    try:
        wire.end(COMMIT, wire.half("first"), ids=["first"])
        job.wait_for(lambda: len(job.messages("orders")) == 1, "a message")
        query = live_query(spark)
        with stuck(query):
            monkeypatch.setattr(Epochs, "gather", fails)
            job.wait_until_dead()
    finally:
        job.stop()
    assert "this epoch cannot be gathered" in str(job.error)
    wait_until(lambda: runs(spark) <= earlier, "the query has ended", seen=lambda: runs(spark))


def test_a_stream_that_waits_for_its_client_for_ever_is_begun_anew(
    settings: Settings,
    spark: SparkSession,
    earlier: frozenset[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stream, "SILENT_S", 3.0)
    wire = Wire(settings)
    with running(settings) as job:
        wire.end(COMMIT, wire.half("before"), ids=["before"])
        job.wait_for(lambda: len(job.messages("orders")) == 1, "a message")
        query = live_query(spark)
        with stuck(query) as client:
            client.begin_to_close(spark._jvm)
            wire.end(COMMIT, wire.half("after"), ids=["after"])
            job.wait_for(lambda: len(job.messages("orders")) == 2, "the message after it")
    assert "the stream has cut no micro-batch for 3 s: it waits for Kafka" in caplog.text
    wait_until(lambda: runs(spark) <= earlier, "all queries have ended", seen=lambda: runs(spark))
