"""What goes wrong around the job: the broker, the disk, the clock, a second driver, other writers.

Kills are in `test_kills.py`, crashes between two writes in `test_crashes.py`, what is wrong at the
start in `test_start.py`.
"""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.chaos_processes import Process
from pipelines import driver
from pipelines.broker import Broker
from pipelines.clock import EpochClock
from pipelines.errors import ClockError, LostInputError, StorageError
from storage.errors import LakeLockedError
from storage.lake import Lake
from tests.job import Job, running, settings_for, wait_until
from tests.wire import Wire
from txlake import Consumer
from txlake.protocol import COMMIT

Unique = Callable[[str], str]
TWO_HOURS_S = 7_200.0


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The job uses the run's one Spark session."""


def commit(wire: Wire, *names: str) -> None:
    """Send a committed transaction for each name; the name is the body."""
    for name in names:
        wire.end(COMMIT, wire.half(name[:40].replace(" ", "-"), body=name.encode()))


def bodies(job: Job) -> list[str]:
    return sorted(row["body"].decode() for row in job.messages("orders"))


def wait_for_bodies(job: Job, *names: str) -> None:
    """Wait until exactly these messages are there, each once."""
    job.wait_for(lambda: len(job.messages("orders")) >= len(names), f"{len(names)} messages")
    assert bodies(job) == sorted(names)


# The broker


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_the_job_goes_on_by_itself_when_the_broker_comes_back(
    tmp_path: Path, unique: Unique, is_killed: bool
) -> None:
    with Broker(tmp_path / "broker") as own:
        settings = settings_for(own, tmp_path / "lake", unique("broker"))
        with running(settings) as job:
            wire = Wire(settings)
            commit(wire, "before")
            wait_for_bodies(job, "before")
            waiting = wire.half("waiting", body=b"waiting")
            job.wait_for_rows("half", 2)
            if is_killed:
                own.kill()
            own.restart()
            wire.end(COMMIT, waiting)
            commit(wire, "after")
            wait_for_bodies(job, "before", "waiting", "after")
        assert len(job.rows("half")) == 3


def _delete_topic(admin: AdminClient, topic: str) -> None:
    for future in admin.delete_topics([topic]).values():
        future.result(10)
    wait_until(lambda: topic not in admin.list_topics(timeout=5).topics, "deletion")


def test_a_half_topic_that_is_made_again_stops_the_running_job(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("topic"))
    job = Job(settings).start()
    try:
        commit(Wire(settings), "before")
        wait_for_bodies(job, "before")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        _delete_topic(admin, settings.kafka.half_topic)
        job.prepare_topics()
        Wire(settings).half("of another log")
        wait_until(lambda: not job.is_running(), "the job stops", seen=lambda: job.error)
    finally:
        job.stop()
    assert isinstance(job.error, LostInputError), job.error
    assert f"{settings.kafka.half_topic} was deleted" in str(job.error)
    assert "\n" not in str(job.error)
    assert bodies(job) == ["before"]
    assert len(job.rows("half")) == 1


def test_records_that_retention_deletes_before_they_land_stop_the_running_job(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    # Rare triggers: the records can be deleted before the job looks.
    settings = settings_for(
        broker, tmp_path / "lake", unique("retention"), stream={"trigger_interval_ms": 10_000}
    )
    job = Job(settings).start()
    try:
        wire = Wire(settings)
        wire.half("landed")
        job.wait_for_rows("half", 1)
        job.wait_for(lambda: job.plans, "the epoch's commit")
        for _ in range(3):
            wire.half("lost")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        place = TopicPartition(settings.kafka.half_topic, 0, 3)
        for future in admin.delete_records([place]).values():
            future.result(10)
        wait_until(lambda: not job.is_running(), "the job stops", seen=lambda: job.error)
    finally:
        job.stop()
    assert isinstance(job.error, LostInputError), job.error
    assert "offsets 1 to 2" in str(job.error)
    assert len(job.rows("half")) == 1


# Two drivers


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
            Wire(self.settings).end(COMMIT, 1_000_000 + number)  # names a half to come
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
    wire = Wire(other.settings)
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
    wire = Wire(other.settings)
    commit(wire, "first")
    other.wait_for_bodies("first")
    commit(wire, "in the open epoch")
    other.stop_in_an_epoch()
    other.process.kill("python")
    assert other.process.wait(30) == -signal.SIGKILL
    assert f":{other.process.pid}:" in refusal(Job(other.settings))
    other.process.signal(signal.SIGCONT)  # the JVM may write for a moment more
    deadline = time.monotonic() + 60
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


# The disk


class SmallDisk:
    """A disk of 8 MiB of its own; where none may be mounted, a limit on the size of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.is_mounted = self._mount("-t", "tmpfs", "-o", "size=8m", "tmpfs").returncode == 0

    def _mount(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = ["mount", *options, str(self.path)]
        return subprocess.run(command, capture_output=True, check=False)

    @contextmanager
    def full(self) -> Iterator[str]:
        """Leave no room; give what the system says then."""
        if not self.is_mounted:
            with largest_file(64 * 1024):
                yield "File too large"
            return
        ballast = self.path / "ballast"
        with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        yield "No space left on device"
        ballast.unlink()

    @contextmanager
    def read_only(self) -> Iterator[str]:
        """Let nothing be written; give what the system says then."""
        if not self.is_mounted:
            with largest_file(512):
                yield "File too large"
            return
        assert self._mount("-o", "remount,ro").returncode == 0
        yield "Read-only file system"
        assert self._mount("-o", "remount,rw").returncode == 0

    def close(self) -> None:
        if self.is_mounted:  # lazily: a file of the job that failed may be open for a moment
            subprocess.run(["umount", "-l", str(self.path)], check=True)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process, and with it the job's driver, write no file beyond a size in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()


def wait_for_the_end(job: Job) -> BaseException:
    """Wait until the job has stopped by itself, and give why."""
    try:
        wait_until(lambda: not job.is_running(), "the job stops")
    finally:
        job.driver.stop()
    job.wait_until_dead()
    assert job.error is not None
    return job.error


def test_a_full_disk_stops_the_job_and_nothing_is_lost_when_there_is_room(
    broker: Broker, disk: SmallDisk, tmp_path: Path, unique: Unique
) -> None:
    large = random.Random(1).randbytes(200_000).hex()
    settings = settings_for(broker, disk.path / "lake", unique("full"))
    wire = Wire(settings)
    job = Job(settings).start()
    try:
        commit(wire, "before")
        wait_for_bodies(job, "before")
        with disk.full() as sign:
            commit(wire, large)
            error = wait_for_the_end(job)
    finally:
        job.driver.stop()
    assert isinstance(error, StorageError), error
    assert sign in str(error)
    with running(settings) as job:
        commit(wire, "after")
        wait_for_bodies(job, "before", large, "after")
        assert len(job.rows("half")) == 3


def test_a_lake_that_cannot_be_written_stops_the_job_and_nothing_is_lost_when_it_can(
    broker: Broker, disk: SmallDisk, tmp_path: Path, unique: Unique
) -> None:
    # With the checkpoint elsewhere the disk has no file open for writing.
    checkpoint = {"trigger_interval_ms": 1_000, "checkpoint": str(tmp_path / "checkpoint")}
    settings = settings_for(broker, disk.path / "lake", unique("read-only"), stream=checkpoint)
    wire = Wire(settings)
    with running(settings) as job:
        commit(wire, "before")
        wait_for_bodies(job, "before")
    commit(wire, "read only")
    with disk.read_only() as sign:
        job = Job(settings)
        job.begin()
        error = wait_for_the_end(job)
    assert isinstance(error, StorageError), error
    assert sign in str(error)
    with running(settings) as job:
        commit(wire, "after")
        wait_for_bodies(job, "before", "read only", "after")


def test_a_job_whose_stream_gave_up_goes_on_when_kafka_is_back_and_can_be_stopped_meanwhile(
    tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "txlake.driver")
    own = Broker(tmp_path / "broker")
    own.start()
    settings = settings_for(own, tmp_path / "lake", unique("silent"))
    job = Job(settings).start()
    try:
        commit(Wire(settings), "before")
        wait_for_bodies(job, "before")
        own.kill()
        wait_until(lambda: "is away" in caplog.text, "the job says so", 150)
        assert "is back" not in caplog.text
        own.restart()
        commit(Wire(settings), "after")
        wait_for_bodies(job, "before", "after")
        assert "is back" in caplog.text
        own.kill()
    finally:
        job.driver.stop()
        own.stop()
    job.wait_until_dead(180)  # what already asks Kafka may wait until its time limits
    assert job.error is None


# The clock


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
    monkeypatch.setattr(driver, "EpochClock", partial(EpochClock, wall=clock))
    return clock


def test_t_never_goes_back_when_the_wall_clock_steps(
    broker: Broker, tmp_path: Path, unique: Unique, wall: WallClock
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("clock"))
    wire = Wire(settings)
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
        with running(settings, tolerate=frozenset({"clock"})) as job:
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
        commit(Wire(settings), "a")
        wait_for_bodies(job, "a")


# Others at the lake's tables

TABLES = ("half", "outcomes", "epochs", "topics/1")


def optimize_by_delta_rs(spark: SparkSession, path: str) -> None:
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(dry_run=False)


def optimize_by_spark(spark: SparkSession, path: str) -> None:
    # VACUUM lists folders in so many tasks: 10,000 by default, which takes a minute.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    spark.sql(f"VACUUM delta.`{path}`").collect()


@pytest.mark.parametrize(
    ("optimize", "tables"),
    [(optimize_by_delta_rs, TABLES), (optimize_by_spark, ("outcomes", "topics/1"))],
)
def test_optimize_and_vacuum_disturb_neither_the_job_nor_readers(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    spark: SparkSession,
    optimize: Callable[[SparkSession, str], None],
    tables: Sequence[str],
) -> None:
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("optimize"),
        lake={"pending_snapshot_epochs": 3},
        stream={"trigger_interval_ms": 1_000},
    )
    wire = Wire(settings)
    names = []
    with running(settings) as job:
        for n in range(2):
            names.append(f"early {n}")
            commit(wire, names[-1])
            wait_for_bodies(job, *names)
        path = job.lake.table_path("topics/1")
        early = DeltaTable(path).to_pyarrow_dataset()  # a reader that takes its time
        reader = early.to_batches(columns=["body"])
        first = next(reader)
        with Consumer(job.lake.path, "group", ["orders"]) as consumer:
            seen = consumer.poll(10.0, max_records=1)
            for n in range(2):
                names.append(f"late {n}")
                commit(wire, names[-1])
                for table in tables:
                    optimize(spark, job.lake.table_path(table))
            wait_for_bodies(job, *names)
            while len(seen) < len(names) and (more := consumer.poll(10.0)):
                seen += more
        places = Counter((m.queue_id, m.queue_offset) for m in seen)
        assert sorted((m.body or b"").decode() for m in seen) == sorted(names)
        assert set(places.values()) == {1}
        left = [body for batch in reader for body in batch["body"].to_pylist()]
        assert len(left) + first.num_rows == 2
        metrics = [entry["operation"] for entry in DeltaTable(path).history()]
        assert "OPTIMIZE" in metrics
    with running(settings) as job:  # from tables that were rewritten
        names.append("after a restart")
        commit(wire, names[-1])
        wait_for_bodies(job, *names)
    assert Lake(settings.lake.path).last("epochs", "epoch") == job.driver.epochs.last.epoch  # type: ignore[union-attr]
