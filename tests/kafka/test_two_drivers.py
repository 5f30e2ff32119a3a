"""Two drivers at one lake: the second one waits its turn."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from storage.errors import LakeLockedError
from tests.support.job import Job, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.processes import Process
from tests.support.transactions import bodies, commit, wait_for_bodies
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT

Unique = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session
_TRIES = 30


class JobProcess:
    """`txlake run` as a process, with a JVM of its own."""

    def __init__(self, broker: Broker, folder: Path, name: str) -> None:
        self.settings = settings_for(broker, folder / "lake", name)
        self.job = Job(self.settings)  # to look at the lake
        self.job.prepare_topics()
        kafka = self.settings.kafka
        conf = folder / "job.toml"
        conf.write_text(
            f'[lake]\npath = "{folder / "lake"}"\n[kafka]\n'
            f'bootstrap_servers = "{kafka.bootstrap_servers}"\nhalf_topic = "{kafka.half_topic}"\n'
            f'op_topic = "{kafka.op_topic}"\nschedule_topic = "{kafka.schedule_topic}"\n'
            f'admin_topic = "{kafka.admin_topic}"\n'
            f'check_topic_prefix = "{kafka.check_topic_prefix}"\nqueues = {kafka.queues}\n'
            "[stream]\ntrigger_interval_ms = 200\n"
        )
        self.process = Process(
            "pipelines", ["run", "--conf", str(conf)], folder / "job.log", folder
        )

    def wait_for_bodies(self, *names: str) -> None:
        def look() -> bool:
            assert self.process.code is None, self.process.log.read_text()
            return len(self.job.messages("orders")) >= len(names)

        wait_until(look, f"{len(names)} messages", seen=self.process.log.read_text)
        wait_until(lambda: not self._open_epochs(), "the epoch's commit")
        assert bodies(self.job) == sorted(names)

    def stop_in_an_epoch(self) -> None:
        """Suspend Python and its JVM between `planned` and `committed`.

        Where an epoch was over too soon, to be stopped or even seen, an operation without effect
        makes another.
        """
        for number in range(_TRIES):
            if self._sees_an_open_epoch():
                self.process.signal(signal.SIGSTOP)
                if self._open_epochs():
                    return
                self.process.signal(signal.SIGCONT)
            KafkaWriter(self.settings).end(COMMIT, 1_000_000 + number)  # names a half to come
        raise AssertionError("every epoch was over too soon")

    def _sees_an_open_epoch(self, seconds: float = 5.0) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._open_epochs():
                return True
            time.sleep(0.005)
        return False

    def _open_epochs(self) -> set[int]:
        states = Counter(row["epoch"] for row in self.job.rows("epochs", ["epoch", "state"]))
        return {epoch for epoch, rows in states.items() if rows == 1}


@pytest.fixture
def other(broker: Broker, tmp_path: Path, unique: Unique) -> Iterator[JobProcess]:
    """Run a job as a process of its own."""
    started = JobProcess(broker, tmp_path, unique("other"))
    try:
        yield started
    finally:
        started.process.end()


def refusal(job: Job) -> str:
    """Start a driver that is refused, and give why."""
    job.begin()
    job.wait_until_dead()
    assert isinstance(job.error, LakeLockedError), job.error
    assert "\n" not in str(job.error)
    return str(job.error)


def test_a_suspended_driver_keeps_the_lake_and_finishes_its_epoch_when_it_goes_on(
    other: JobProcess,
) -> None:
    wire = KafkaWriter(other.settings)
    commit(wire, "first")
    other.wait_for_bodies("first")
    commit(wire, "in the open epoch")
    other.stop_in_an_epoch()
    assert f":{other.process.pid}:" in refusal(Job(other.settings))
    other.process.signal(signal.SIGCONT)
    commit(wire, "last")
    other.wait_for_bodies("first", "in the open epoch", "last")
    assert len(other.job.rows("half")) == 3
    assert len({row["owner"] for row in other.job.rows("epochs")}) == 1


def test_a_jvm_that_outlives_its_python_keeps_the_lake_until_it_is_dead(other: JobProcess) -> None:
    wire = KafkaWriter(other.settings)
    commit(wire, "first")
    other.wait_for_bodies("first")
    commit(wire, "in the open epoch")
    other.stop_in_an_epoch()
    other.process.kill("python")
    assert other.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert f":{other.process.pid}:" in refusal(Job(other.settings))
    other.process.signal(signal.SIGCONT)  # the JVM may write for a moment more
    deadline = time.monotonic() + DEADLINE_S
    while True:
        second = Job(other.settings).start()
        try:
            if not isinstance(second.error, LakeLockedError):
                commit(wire, "last")
                wait_for_bodies(second, "first", "in the open epoch", "last")
                break
            assert time.monotonic() < deadline, second.error
        finally:
            second.stop()
    assert len(second.rows("half")) == 3
    states = Counter((row["epoch"], row["state"]) for row in second.rows("epochs"))
    assert set(states.values()) == {1}
