"""SIGTERM and Ctrl-C end the job after its running epoch, with exit code 0."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.epoch import land
from pipelines.local_broker.broker import Broker
from tests.support.job import running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.standby_processes import ACTIVE, Drivers, drivers_of
from tests.support.wait import wait_until

Unique = Callable[[str], str]
ROUNDS = 2


@pytest.fixture
def drivers(broker: Broker, tmp_path: Path, unique: Unique) -> Iterator[Drivers]:
    """A lake with topics of its own, without a driver yet."""
    with drivers_of(settings_for(broker, tmp_path / "lake", unique("stop")), tmp_path) as lake:
        yield lake


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_stopped_finishes_its_epoch_and_ends_with_0(
    drivers: Drivers, number: signal.Signals
) -> None:
    for _ in range(ROUNDS):
        job = drivers.wait_for(ACTIVE, drivers.start())
        drivers.send(*"abc")
        drivers.wait_for_sent()
        drivers.send(*"defghi")  # an epoch is being read, decided or written
        job.signal(number)  # of a terminal, and of a service manager: to Python and its JVM
        assert job.wait(60) == 0, job.log.read_text()
        said = job.log.read_text()
        assert said.rstrip().endswith("INFO stopped"), said
        assert "Traceback" not in said
        assert "Fatal" not in said
        assert "is given up" not in said


def test_a_standby_that_is_stopped_ends_with_0(drivers: Drivers) -> None:
    drivers.start_active()
    for number in (signal.SIGINT, signal.SIGTERM):
        standby = drivers.start_standby()
        standby.signal(number)
        assert standby.wait(60) == 0, standby.log.read_text()
        assert "Traceback" not in standby.log.read_text()
    drivers.send("after")
    drivers.wait_for_sent()


def test_the_end_waits_for_the_warm_up(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that ends while a thread of it is in Arrow's code is aborted, exit code -6."""
    warm_up = land.warm_up
    has_begun = threading.Event()
    is_started = threading.Event()
    ended_before: list[bool] = []

    def warm_up_that_takes_long(*arguments: Any) -> None:
        has_begun.set()
        assert is_started.wait(60)
        job.driver._stop.wait(60)
        wait_until(lambda: not job.driver.is_streaming, "the stream's end")
        with suppress(AssertionError):
            wait_until(lambda: not job.is_running(), "the job's end", 1.0)
        ended_before.append(not job.is_running())
        warm_up(*arguments)

    monkeypatch.setattr(land, "warm_up", warm_up_that_takes_long)
    with running(settings_for(broker, tmp_path / "lake", unique("threads"))) as job:
        is_started.set()
        KafkaWriter(job.settings).half("one")
        assert has_begun.wait(60)
    assert ended_before == [False]
