"""A disk that is full, or cannot be written: the job stops and loses nothing."""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.errors import StorageError
from pipelines.local_broker.broker import Broker
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.transactions import commit, wait_for_bodies, wait_for_the_end

Unique = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session


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


def test_a_full_disk_stops_the_job_and_nothing_is_lost_when_there_is_room(
    broker: Broker, disk: SmallDisk, unique: Unique, capfd: pytest.CaptureFixture[str]
) -> None:
    large = random.Random(1).randbytes(200_000).hex()
    settings = settings_for(broker, disk.path / "lake", unique("full"))
    wire = KafkaWriter(settings)
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
    assert "panicked" not in capfd.readouterr().err
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
    wire = KafkaWriter(settings)
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
