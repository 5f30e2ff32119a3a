"""Two drivers of a chaos run: what is drawn for them, and who is which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.chaos import drivers as module
from bench.chaos.drivers import Drivers, ended_well, was_replaced
from bench.chaos.kills import (
    SAYS,
    STANDING_BY,
    STARTING,
    STOPPED,
    STREAMING,
    SUSPENDED,
    Kill,
    schedule,
    with_lost_answers,
)
from bench.chaos.names import CONSUMER, DRIVERS, JOB, RAW, STANDBY
from bench.chaos.settings import settings_text
from pipelines.settings import load
from tests.support.processes import Process
from tests.support.wait import wait_until

FIRST, SECOND = DRIVERS
(RUNNING,) = SAYS[STREAMING]


def test_two_drivers_are_killed_stopped_and_suspended_and_one_alone_is_only_killed() -> None:
    of_two = schedule(400, 1, 2.0, has_standby=True)
    ways = {"all", "python", "jvm", SUSPENDED, STOPPED}
    for target in (JOB, STANDBY):
        assert {kill.whom for kill in of_two if kill.target == target} == ways
    of_one = schedule(400, 1, 2.0)
    assert {kill.whom for kill in of_one if kill.target == JOB} == {"all", "python", "jvm"}
    assert STANDBY not in {kill.target for kill in of_one}


def test_only_a_driver_that_has_begun_is_stopped_suspended_or_loses_its_jvm() -> None:
    kills = [k for k in schedule(400, 1, 2.0, has_standby=True) if k.target in (JOB, STANDBY)]
    early = {kill.whom for kill in kills if kill.when == STARTING}
    assert early == {"all", "python"}
    assert {k.says for k in kills if k.target == STANDBY} == {(), SAYS[STANDING_BY]}


def test_answers_are_lost_at_so_many_kills_of_who_writes_the_lake_and_no_other_draw_changes() -> (
    None
):
    kills = schedule(100, 1, 2.0, has_standby=True)
    found = with_lost_answers(kills, 1, 10)
    assert found == with_lost_answers(kills, 1, 10)
    losing = [kill for kill in found if kill.loses_answers]
    assert len(losing) == 10
    assert {kill.target for kill in losing} <= {JOB, STANDBY, CONSUMER}
    assert [replace(kill, loses_answers=False) for kill in found] == kills
    assert with_lost_answers(kills, 1, 0) == kills


def test_more_kills_with_lost_answers_than_there_can_be_are_refused_in_a_sentence() -> None:
    kills = [Kill(RAW, "all", STARTING, 1.0), Kill(JOB, "all", STARTING, 1.0)]
    with pytest.raises(ValueError, match=r"^1 of 2 kills are of processes that write the lake; 2 "):
        with_lost_answers(kills, 1, 2)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[dict[str, Process]]:
    """Two processes that wait for something; a test writes into their logs what they say."""
    waits = ["-n", "1", "-r", "1", "import signal; signal.pause()"]  # and says nothing itself
    found = {name: Process("timeit", waits, tmp_path / name, tmp_path) for name in DRIVERS}
    yield found
    for process in found.values():
        process.end()


@pytest.fixture
def drivers(pair: dict[str, Process]) -> Drivers:
    found = Drivers(DRIVERS)
    for name, process in pair.items():
        found.started(name, process)
    return found


def say(process: Process, text: str) -> None:
    with process.log.open("a") as log:
        log.write(f"\n{text}\n")


def test_the_one_that_said_so_last_is_active_and_the_other_stands_by(
    drivers: Drivers, pair: dict[str, Process]
) -> None:
    assert drivers.in_role(JOB) is None, "nobody has said anything"
    say(pair[SECOND], RUNNING)
    drivers.look()
    assert (drivers.in_role(JOB), drivers.in_role(STANDBY)) == (SECOND, FIRST)
    say(pair[FIRST], RUNNING)
    drivers.look()
    assert (drivers.in_role(JOB), drivers.in_role(STANDBY)) == (FIRST, SECOND)
    drivers.ended(FIRST)
    assert (drivers.in_role(JOB), drivers.in_role(STANDBY)) == (SECOND, None)


def test_one_that_is_suspended_is_not_active_until_it_has_slept_long_enough(
    drivers: Drivers, pair: dict[str, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSION_TIMEOUT_MS", 0)
    say(pair[FIRST], RUNNING)
    drivers.look()

    drivers.suspend(FIRST, more_s=3_600.0)
    drivers.look()
    wait_for(pair[FIRST], psutil.STATUS_STOPPED)
    assert (drivers.in_role(JOB), drivers.in_role(STANDBY)) == (None, FIRST)

    drivers.suspend(FIRST, more_s=-1.0)
    drivers.look()
    wait_for(pair[FIRST], psutil.STATUS_SLEEPING)
    assert drivers.in_role(JOB) == FIRST


def wait_for(process: Process, status: str) -> None:
    seen = psutil.Process(process.pid).status
    wait_until(lambda: seen() == status, f"a process that is {status}", seen=seen)


def test_a_driver_alone_is_the_active_one_from_the_start_and_its_start_is_measured(
    pair: dict[str, Process],
) -> None:
    alone = Drivers(DRIVERS[:1])
    alone.started(FIRST, pair[FIRST])
    alone.look()
    assert (alone.in_role(JOB), alone.start_s) == (FIRST, [])
    say(pair[FIRST], RUNNING)
    alone.look()
    alone.look()
    assert len(alone.start_s) == 1


@pytest.mark.parametrize(
    ("said", "is_replaced", "is_refused"),
    [
        ("Error: vm:2:b is the active driver of the lake /l now: it stops", True, False),
        ("Error: epoch 7 was planned by vm:2:b: another driver writes this lake", True, False),
        ("Error: another process writes the lake /l; this one stops", True, False),
        ("Error: the lake /l is written by vm:2:b: one driver at a time; stop it", False, True),
        ("WARNING going on without the lock: one driver at a time\nError: broken", False, False),
    ],
)
def test_the_last_sentence_says_why_a_driver_ended(
    drivers: Drivers, pair: dict[str, Process], said: str, is_replaced: bool, is_refused: bool
) -> None:
    say(pair[FIRST], said)
    assert was_replaced(pair[FIRST]) == is_replaced
    assert drivers.was_refused(pair[FIRST]) == is_refused


@pytest.mark.parametrize(
    ("code", "said", "is_well"),
    [
        (0, "INFO active: Kafka has elected this driver", True),
        (1, "Error: vm:2:b is the active driver of the lake /l now: it stops", True),
        (-15, "Setting default log level", True),
        (-15, "INFO standby: vm:2:b is active", False),
        (1, "Error: broken", False),
        (None, "INFO active: Kafka has elected this driver", False),
    ],
)
def test_a_driver_that_is_stopped_ends_with_0_or_had_not_begun_or_was_replaced(
    pair: dict[str, Process], code: int | None, said: str, is_well: bool
) -> None:
    say(pair[FIRST], said)
    assert ended_well(pair[FIRST], code) == is_well


def test_settings_name_the_store_of_the_lake(tmp_path: Path) -> None:
    conf = tmp_path / "job.toml"
    store = {"endpoint": "http://127.0.0.1:1", "allow_http": True}
    lake = {"path": "s3://lakes/lake", "store": store}
    conf.write_text(settings_text({"lake.pending_snapshot_epochs": 7}, lake, "localhost:9092"))
    read = load(conf).lake
    assert (read.path, read.pending_snapshot_epochs) == ("s3://lakes/lake", 7)
    assert read.store == {"endpoint": "http://127.0.0.1:1", "allow_http": "true"}
