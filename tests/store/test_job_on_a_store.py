"""The real job on a lake in a store that fails in every way: nothing is lost or doubled."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import (
    DATA,
    LIST,
    LOG,
    CutBefore,
    CutWithin,
    Fault,
    LostAnswer,
    Slow,
    Status,
    Throttle,
)
from tests.support.job import settings_for
from tests.support.processes import Process
from tests.support.standby_processes import Drivers, drivers_of
from tests.support.store import make_bucket
from tests.support.wait import DEADLINE_S, wait_until

AWAY, BACK = "is away, for", "is back after"
# Each happens to some requests while the job works; what the job sees of it is the client's affair.
FAULTS = {
    "500": [Fault(Status(500, "InternalError"), every=9)],
    "503": [Fault(Status(503, "SlowDown"), every=7)],
    "slow answers": [Fault(Slow(0.3), every=4)],
    "cut before an answer": [Fault(CutBefore(), every=8)],
    "cut within an answer": [Fault(CutWithin(), method="GET", every=5)],
    "lost answers": [
        Fault(LostAnswer(), method="PUT", kind=LOG, every=4),
        Fault(LostAnswer(), method="PUT", kind=DATA, every=5),
    ],
    # A slow machine never made 60 requests within a second.
    "throttled": [Fault(Throttle(8))],
    "lists fail": [Fault(Status(503, "SlowDown"), kind=LIST, every=3)],
}


@pytest.fixture(scope="module")
def drivers(
    broker: Broker, store: Store, proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drivers]:
    """The drivers of one lake behind the proxy, which all tests of this module go on with."""
    name = f"faults-{time.time_ns()}"
    bucket = dataclasses.replace(make_bucket(store, name), endpoint=proxy.endpoint)
    settings = settings_for(broker, Path("lake"), name)
    lake = dataclasses.replace(settings.lake, path=f"{bucket.uri}/lake", store=bucket.options)
    settings = dataclasses.replace(settings, lake=lake)
    folder = tmp_path_factory.mktemp("faults")
    with drivers_of(settings, folder, bucket.settings_of(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def active(drivers: Drivers) -> Process:
    return drivers.start_active()


@pytest.mark.parametrize("kind", FAULTS)
def test_a_store_that_fails_now_and_then_loses_and_doubles_nothing(
    drivers: Drivers, proxy: FaultProxy, active: Process, kind: str
) -> None:
    running = [proxy.add(fault) for fault in FAULTS[kind]]
    try:
        for number in range(3):
            drivers.send(f"{kind} {number}")
            time.sleep(0.7)  # epochs of their own
        # The tests read past the faults.
        wait_until(lambda: all(fault.hits > 0 for fault in running), "each fault has struck")
    finally:
        for fault in running:
            proxy.remove(fault)
    drivers.wait_for_sent()
    assert active.code is None, active.log.read_text()


def test_a_store_that_was_away_is_waited_for(
    drivers: Drivers, proxy: FaultProxy, active: Process
) -> None:
    before = len(active.log.read_text())
    with proxy.away():
        drivers.send("away 1", "away 2")
        wait_until(lambda: AWAY in active.log.read_text()[before:], AWAY)
    drivers.wait_for_sent()
    # It says that the store is back when it has written there, and others can see that.
    wait_until(lambda: BACK in active.log.read_text().rpartition(AWAY)[2], BACK)
    said = active.log.read_text()
    lines = [line for line in said.splitlines() if AWAY in line or BACK in line]
    assert all("the store of s3://" in line for line in lines), lines
    assert "Traceback" not in said
    assert active.code is None


def test_a_driver_that_wakes_up_on_a_store_when_another_has_the_lake_writes_nothing_and_stops(
    drivers: Drivers, active: Process
) -> None:
    """On a store there is no lock: Kafka elects, and Delta's identifiers refuse."""
    standby = drivers.start_standby()
    active.signal(signal.SIGSTOP)
    drivers.send("asleep 1", "asleep 2")
    drivers.wait_for_sent()
    active.signal(signal.SIGCONT)
    drivers.send("awake")
    assert active.wait(DEADLINE_S) != 0
    last = active.log.read_text().strip().splitlines()[-1]
    assert "is the active driver of the lake" in last or "another driver" in last
    drivers.wait_for_sent()
    drivers.check()
    standby.signal(signal.SIGTERM)
    assert standby.wait(DEADLINE_S) == 0
    secret = (drivers.conf.parent / "secret").read_text()
    for process in (active, standby):
        assert secret not in process.log.read_text()
