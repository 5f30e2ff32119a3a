"""Two drivers of one lake: Kafka elects, the standby takes over, and each message is there once.

The stories share a lake: whoever is left of one is the active driver of the next.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from tests.support.job import settings_for
from tests.support.processes import Process
from tests.support.standby_processes import ACTIVE, Drivers, drivers_of
from tests.support.wait import DEADLINE_S, wait_until

Pair = tuple[Process, Process]


@pytest.fixture(scope="module")
def drivers(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """A lake with topics of its own, without a driver yet."""
    folder = tmp_path_factory.mktemp("standby")
    settings = settings_for(broker, folder / "lake", f"standby-{time.time_ns()}")
    with drivers_of(settings, folder) as lake:
        yield lake


@pytest.fixture
def pair(drivers: Drivers) -> Pair:
    """An active driver, and one that stands by; a story that failed leaves neither."""
    left = drivers.living()
    if len(left) != 1:
        drivers.end()
        left = [drivers.start_active()]

    return left[0], drivers.start_standby()


def owner(process: Process) -> str:
    """Returns how the log and the lake name an active driver."""
    (line,) = [line for line in process.log.read_text().splitlines() if ACTIVE in line]
    return line.partition("; owner ")[2].partition(";")[0]


def refusal(process: Process) -> str:
    """Waits until a driver has ended by itself, and returns its one sentence."""
    assert process.wait(DEADLINE_S) == 1, process.log.read_text()
    text = process.log.read_text()
    assert "Traceback" not in text, text[text.index("Traceback") - 300 :]
    (line,) = [line for line in text.splitlines() if line.startswith("Error: ")]
    return line


def test_a_standby_goes_on_when_the_active_driver_is_killed(drivers: Drivers, pair: Pair) -> None:
    first, second = pair
    drivers.send("before")
    assert second.has_said(f"standby: {owner(first)} is active")
    drivers.wait_for_sent()
    said = drivers.doctor()
    assert f"{owner(first)} is active" in said
    settings = drivers.settings
    assert (
        f"lake {settings.lake.path}; Kafka {settings.kafka.bootstrap_servers}; no metrics\n"
        in first.log.read_text()
    )
    assert f":{second.pid}:" in said
    assert "stands by" in said
    assert "one driver at a time; stop it first" in refusal(drivers.start())
    drivers.send("just before")
    first.kill()
    drivers.send("after")
    drivers.wait_for_sent()
    assert drivers.owners()[-1] == owner(second) != owner(first)
    drivers.check()


def test_a_standby_goes_on_when_the_active_driver_is_stopped(drivers: Drivers, pair: Pair) -> None:
    first, _ = pair
    drivers.send("before")
    drivers.wait_for_sent()
    drivers.send("meanwhile")
    first.terminate()
    drivers.send("after")
    assert first.wait(DEADLINE_S) == 0
    drivers.wait_for_sent()
    drivers.check()


@pytest.mark.parametrize("whom", ["standby", "active"])
def test_a_driver_whose_jvm_is_killed_ends_with_a_sentence(
    drivers: Drivers, pair: Pair, whom: str
) -> None:
    first, second = pair
    drivers.send("before")
    drivers.wait_for_sent()
    victim = second if whom == "standby" else first
    victim.kill("jvm")
    assert "the driver's JVM has ended" in refusal(victim)
    drivers.send("after")
    drivers.wait_for_sent()
    drivers.check()


def test_a_driver_that_wakes_up_when_another_has_the_lake_writes_nothing_and_stops(
    drivers: Drivers, pair: Pair
) -> None:
    first, second = pair
    drivers.send("before")
    drivers.wait_for_sent()
    drivers.send("just before")
    first.signal(signal.SIGSTOP)
    drivers.send("asleep")
    drivers.wait_for_sent()
    assert drivers.owners()[-1] == owner(second)
    assert second.has_said("going on without the lake's lock")
    first.signal(signal.SIGCONT)
    drivers.send("awake")
    said = refusal(first)
    # Within an epoch, which the other one has planned anew or committed, it is told so of that.
    words = ("is the active driver of the lake", "another driver writes this lake")
    assert owner(second) in said and any(word in said for word in words), said
    drivers.wait_for_sent()
    drivers.send("alone")
    drivers.wait_for_sent()
    owners = drivers.owners()
    assert set(owners[owners.index(owner(second)) :]) == {owner(second)}
    wait_until(lambda: refused_by(drivers, second), "the lock is taken when it is free")
    drivers.check()


def refused_by(drivers: Drivers, active: Process) -> bool:
    """Returns whether the lake's lock, by which a start is refused at once, names a driver."""
    lock = Path(drivers.settings.lake.path, "_driver.lock")
    return lock.read_text() == owner(active)
