"""The clock: T never goes back, and a clock far from the broker's is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from pipelines.epoch.clock import EpochClock
from pipelines.epoch.own_pings import OwnPings
from pipelines.errors import ClockError
from pipelines.job import driver_loop
from pipelines.job.clock_skew import ClockSkewCheck
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from tests.support.epoch_harness import EpochHarness
from tests.support.job import Job, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.transactions import commit, wait_for_bodies, wait_for_the_end
from tests.support.wait import DEADLINE_S

Unique = Callable[[str], str]
TWO_HOURS_S = 7_200.0
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session


class WallClock:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.shift_s


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """Return the driver a wall clock that can be set."""
    clock = WallClock()
    monkeypatch.setattr(driver_loop, "EpochClock", partial(EpochClock, wall=clock))
    return clock


def test_t_never_goes_back_when_the_wall_clock_steps(
    broker: Broker, tmp_path: Path, unique: Unique, wall: WallClock
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("clock"))
    wire = KafkaWriter(settings)
    names = []

    def send(job: Job) -> None:
        names.append(f"message {len(names)}")
        commit(wire, names[-1])
        wait_for_bodies(job, *names)

    with running(settings) as job:
        for shift_s in (0.0, TWO_HOURS_S, -TWO_HOURS_S):
            wall.shift_s = shift_s
            send(job)
        steps_ms = [plan.epoch_at for plan in job.plans]
        assert max(steps_ms) - min(steps_ms) < TWO_HOURS_S * 1000 / 2, "a step does not move T"
    # Whoever switches the comparison with the broker's clock off is still safe from going back.
    for shift_s in (TWO_HOURS_S, -TWO_HOURS_S):
        wall.shift_s = shift_s
        with running(settings, skip_checks=frozenset({"clock"})) as job:
            send(job)
    rows = [row for row in job.rows("epochs") if row["state"] == "planned"]
    instants = [row["epoch_at"] for row in sorted(rows, key=lambda row: row["epoch"])]
    assert instants == sorted(instants)
    assert instants[-1] - instants[0] > TWO_HOURS_S * 1000 / 2


@pytest.mark.parametrize("shift_s", [-TWO_HOURS_S, -61.0, 61.0, TWO_HOURS_S])
def test_a_clock_that_is_more_than_60_s_off_the_brokers_is_refused(
    broker: Broker, tmp_path: Path, unique: Unique, wall: WallClock, shift_s: float
) -> None:
    # The broker's own half of a second: 61 s less that is still more than 60 s.
    settings = settings_for(broker, tmp_path / "lake", unique("off"))
    wall.shift_s = shift_s + (-5.0 if shift_s < 0 else 5.0)
    job = Job(settings)
    job.begin()
    error = wait_for_the_end(job)
    assert isinstance(error, ClockError)
    assert "more than 60 s apart" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("shift_s", [-50.0, 50.0])
def test_a_clock_that_is_less_than_60_s_off_the_brokers_is_accepted(
    broker: Broker, tmp_path: Path, unique: Unique, wall: WallClock, shift_s: float
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("near"))
    wall.shift_s = shift_s
    with running(settings) as job:
        commit(KafkaWriter(settings), "a")
        wait_for_bodies(job, "a")


@pytest.mark.parametrize("slept_s", [-TWO_HOURS_S, TWO_HOURS_S])
def test_a_machine_that_slept_or_was_set_is_right_if_it_agrees_with_the_broker(
    broker: Broker, tmp_path: Path, unique: Unique, slept_s: float
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("slept"))
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()
    wall = WallClock()
    wall.shift_s = -slept_s
    clock = EpochClock(wall=wall)
    clocks = ClockSkewCheck(settings, "host:1:a", clock, is_tolerant=False)
    wall.shift_s = 0.0

    clocks.compare(OwnPings())
    assert abs(clock.raw_ms() / 1000 - time.time()) < TWO_HOURS_S / 2

    wall.shift_s = slept_s  # without the broker: what is counted from the start is right
    clocks.compare(OwnPings())
    assert abs(clock.raw_ms() / 1000 - time.time()) < TWO_HOURS_S / 2


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_driver_that_is_suspended_while_it_asks_the_broker_is_not_refused(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
    is_answered: bool,
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("suspended"))
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()
    wall = WallClock()
    clock = EpochClock(wall=wall)
    clocks = ClockSkewCheck(settings, "host:1:a", clock, is_tolerant=False)
    clocks.compare(OwnPings())
    ping, raw_ms = ClockSkewCheck._ping, clock.raw_ms

    def asked(self: ClockSkewCheck) -> tuple[int, int]:
        offset, broker_ms = ping(self)
        # It goes on two minutes later, and the broker stamped the PING before that, or then.
        monkeypatch.setattr(clock, "raw_ms", lambda: raw_ms() + 120_000)
        return offset, broker_ms if is_answered else broker_ms + 120_000

    monkeypatch.setattr(ClockSkewCheck, "_ping", asked)
    pings = OwnPings()
    clocks.compare(pings)
    assert len(pings) == 1


def test_a_lake_that_is_ahead_of_both_clocks_is_named_with_what_that_means(
    broker: Broker, tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("ahead"))
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()
    four_days_ms = 4 * 86_400_000
    clock = EpochClock()
    clocks = ClockSkewCheck(settings, "host:1:a", clock, is_tolerant=False)
    clocks.compare(OwnPings())
    clock.not_before(clock.raw_ms() + 50_000)
    clocks.compare(OwnPings())
    assert caplog.messages == [], "as far apart as clocks can be"
    clock.not_before(clock.raw_ms() + four_days_ms)
    clocks.compare(OwnPings())
    (line,) = caplog.messages
    assert line.startswith("lake_ahead: the lake is ")
    assert "ahead of the clocks" in line
    assert "no half is asked about or given up" in line


def test_an_idle_job_lands_its_pings_before_kafka_deletes_them(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("idle"))
    admin = settings.kafka.admin_topic, 0
    clock = EpochClock()

    with EpochHarness(None, settings) as harness:
        harness.start()
        commit(KafkaWriter(settings), "first")
        harness.run(clock.now_ms())

        pings = ClockSkewCheck(settings, harness.owner, clock, is_tolerant=False)
        plans = []
        for _ in range(14):
            pings.compare(harness.epochs.own_pings)
            plans.append(harness.run(clock.now_ms()))
        landed = harness.epochs.progress.landed()[admin]
        assert [number for number, plan in enumerate(plans, 1) if plan] == [6, 12]

        kept = TopicPartition(*admin, landed)
        client = admin_client(broker.bootstrap_servers)
        client.delete_records([kept])[kept].result(DEADLINE_S)
        commit(KafkaWriter(settings), "second")
        assert harness.run(clock.now_ms())

    with EpochHarness(None, settings, owner="the next one") as harness:
        harness.start()
        assert harness.epochs.start_offsets()[admin] == landed + 2
