"""SIGTERM and Ctrl-C end the job after its running epoch, with exit code 0.

The stories share a lake, and an active driver where one leaves it.
"""

from __future__ import annotations

import signal
import threading
import time
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
from tests.support.processes import Process
from tests.support.standby_processes import ACTIVE, Drivers, drivers_of
from tests.support.wait import DEADLINE_S, wait_until

Unique = Callable[[str], str]
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(scope="module")
def drivers(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """A lake with topics of its own, without a driver yet."""
    folder = tmp_path_factory.mktemp("stop")
    settings = settings_for(broker, folder / "lake", f"stop-{time.time_ns()}")
    with drivers_of(settings, folder) as lake:
        yield lake


@pytest.fixture
def active(drivers: Drivers) -> Process:
    """An active driver; a story that failed leaves none."""
    left = drivers.living()
    if len(left) == 1:
        return left[0]

    drivers.end()
    return drivers.wait_for(ACTIVE, drivers.start())


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_standby_that_is_stopped_ends_with_0(drivers: Drivers, number: signal.Signals) -> None:
    standby = drivers.start_standby()
    standby.signal(number)
    assert standby.wait(DEADLINE_S) == 0, standby.log.read_text()
    assert "Traceback" not in standby.log.read_text()
    drivers.send("after")
    drivers.wait_for_sent()


@pytest.mark.parametrize(
    "number",
    [*SIGNALS, *(pytest.param(one, marks=pytest.mark.soak, id=f"{one} again") for one in SIGNALS)],
)
def test_a_job_that_is_stopped_finishes_its_epoch_and_ends_with_0(
    drivers: Drivers, active: Process, number: signal.Signals
) -> None:
    drivers.send(*"abc")
    drivers.wait_for_sent()
    drivers.send(*"defghi")  # an epoch is being read, decided or written
    active.signal(number)  # of a terminal, and of a service manager: to Python and its JVM
    assert active.wait(DEADLINE_S) == 0, active.log.read_text()
    said = active.log.read_text()
    assert said.rstrip().endswith("INFO stopped"), said
    assert "Traceback" not in said
    assert "Fatal" not in said
    assert "is given up" not in said


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
        assert is_started.wait(DEADLINE_S)
        job.driver._stop.wait(DEADLINE_S)
        wait_until(lambda: not job.driver.is_streaming, "the stream's end")
        with suppress(AssertionError):
            wait_until(lambda: not job.is_running(), "the job's end", 1.0)
        ended_before.append(not job.is_running())
        warm_up(*arguments)

    monkeypatch.setattr(land, "warm_up", warm_up_that_takes_long)
    with running(settings_for(broker, tmp_path / "lake", unique("threads"))) as job:
        is_started.set()
        KafkaWriter(job.settings).half("one")
        assert has_begun.wait(DEADLINE_S)
    assert ended_before == [False]
