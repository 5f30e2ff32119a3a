"""A query that Spark cannot end, since Kafka's Java client in it does not: the job goes on."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.epoch.runner import EpochRunner
from pipelines.job import stream, warm_up
from pipelines.job.stream import QUERY_NAME
from pipelines.job.warm_up import StandbyWarmUp
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.intake import Intake
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.lake.lake import Lake
from tests.support.job import Job, live_query, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.stuck_client import stuck
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT

Unique = Callable[[str], str]
SILENT = re.compile(r"the stream has cut no micro-batch for \d+ s: it waits for Kafka")
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
    wire = KafkaWriter(settings)
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

    wire = KafkaWriter(settings)
    job = Job(settings).start()
    try:
        wire.end(COMMIT, wire.half("first"), ids=["first"])
        job.wait_for(lambda: len(job.messages("orders")) == 1, "a message")
        query = live_query(spark)
        with stuck(query):
            monkeypatch.setattr(EpochRunner, "land_batch", fails)
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
    wire = KafkaWriter(settings)
    with running(settings) as job:
        wire.end(COMMIT, wire.half("before"), ids=["before"])
        job.wait_for(lambda: len(job.messages("orders")) == 1, "a message")
        query = live_query(spark)
        with stuck(query) as client:
            client.begin_to_close(spark._jvm)
            wire.end(COMMIT, wire.half("after"), ids=["after"])
            with monkeypatch.context() as patch:  # a slow stream before or after it is no such one
                patch.setattr(stream, "STALL_TIMEOUT_S", 3.0)
                job.wait_for(lambda: SILENT.search(caplog.text), "the stream is given up")
            job.wait_for(lambda: len(job.messages("orders")) == 2, "the message after it")
    wait_until(lambda: runs(spark) <= earlier, "all queries have ended", seen=lambda: runs(spark))


def test_a_rehearsal_ends_when_its_micro_batch_does_not(
    settings: Settings,
    spark: SparkSession,
    earlier: frozenset[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end, ended = (threading.Event() for _ in range(3))

    class OnceBegun:  # however slow the machine is
        def __int__(self) -> int:
            began.wait(DEADLINE_S)
            return 1

    monkeypatch.setattr(warm_up, "STALL_TIMEOUT_S", OnceBegun())

    def lands(*_: Any) -> None:
        began.set()
        may_end.wait(DEADLINE_S)
        ended.set()

    monkeypatch.setattr(StandbyWarmUp, "_land", lands)
    kafka = KafkaAdmin(settings, settings.kafka.topics())
    kafka.create_missing()
    try:
        StandbyWarmUp(spark, settings, Intake.of(settings), kafka, Lake(settings.lake.path)).run()
        assert (began.is_set(), ended.is_set()) == (True, False)
    finally:
        may_end.set()
    wait_until(lambda: runs(spark) <= earlier, "the query has ended", seen=lambda: runs(spark))


def test_a_stream_with_a_micro_batch_a_moment_ago_is_not_asked_whether_it_lives(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[StreamingQuery] = []
    silent_s: list[float] = []  # at each look, for how long no micro-batch had come
    asked_after_s: list[float] = []
    is_active: Any = StreamingQuery.isActive
    is_alive = stream.Stream._is_alive

    def counted(query: StreamingQuery) -> bool:
        asked.append(query)
        return bool(is_active.fget(query))

    def look(of: stream.Stream, query: StreamingQuery) -> bool:
        returned_at, before = of._returned_at, len(asked)
        lives = is_alive(of, query)
        silent_s.append(0.0 if returned_at is None else time.monotonic() - returned_at)
        if len(asked) > before:
            asked_after_s.append(silent_s[-1])
        return lives

    monkeypatch.setattr(StreamingQuery, "isActive", property(counted))
    monkeypatch.setattr(stream.Stream, "_is_alive", look)
    wire = KafkaWriter(settings)
    with running(settings) as job:
        for count in range(1, 12):
            wire.end(COMMIT, wire.half(f"m{count}"), ids=[f"m{count}"])
            job.wait_for(lambda count=count: len(job.messages("orders")) == count, "a message")
    # However slow the machine is: some looks came soon, and none of these has asked.
    assert min(silent_s) < stream.LIVENESS_CHECK_AFTER_S
    assert [s for s in asked_after_s if s < stream.LIVENESS_CHECK_AFTER_S] == []
