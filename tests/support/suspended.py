"""Drivers that suspend themselves by SIGSTOP at a write of an epoch, each a process of its own.

The epoch is the third of `tests/support/crash_story.py`, which writes into every table. Processes
are forked from a server that has imported everything, and land without Spark
(`tests/support/landed_here.py`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka.admin import AdminClient, NewTopic

from pipelines.cli.main import KNOWN_ERRORS
from pipelines.job.election import Election
from pipelines.job.ownership import Ownership
from pipelines.job.upkeep import Maintainer
from pipelines.kafka_log.topics import KafkaTopics, Place
from pipelines.settings import Settings
from storage.lake.epochs import read_progress
from storage.lake.lake import Lake
from storage.upkeep.maintenance import Maintenance, MaintenanceLimits
from tests.support.crash_story import ANSWERING, Story
from tests.support.job import wait_until
from tests.support.landed_here import NO_SPARK, LightRig, land_here
from tests.support.rig import Rig
from tests.support.watch import Watch
from tests.support.wire import Wire
from txlake.protocol import COMMIT

BEFORE, AFTER = "about to be done", "just done"
EPOCHS: Final = 10  # that another driver commits meanwhile
LAST: Final = 3 + EPOCHS


@dataclass
class Suspension(Watch):
    """A watch whose process stops at a write, before or after it: once."""

    def around(self, name: str, write: Callable[[], Any]) -> Any:
        """Does a write; the process stops around the one that it watches for."""
        if name != self.at:
            return write()
        self.at = ""
        if self.mode == BEFORE:
            stop_here()
            return write()
        done = write()
        stop_here()
        return done


def stop_here() -> None:
    """Suspends this process, all its threads, until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


@dataclass
class LightStory(Story):
    """The story, with ten epochs more, of processes without Spark. `lakes`: where its lakes are.

    Input: `uri` and `options` of a store, where the folder is one of a server's.
    """

    uri: str = ""
    options: dict[str, str] = field(default_factory=dict)
    ends: dict[int, dict[Place, int]] = field(default_factory=dict)

    def of(self, folder: Path) -> Settings:
        """Returns the settings of a lake in a folder of the story's."""
        path = f"{self.uri}/{folder.relative_to(self.folder)}" if self.uri else str(folder)
        lake = replace(self.settings.lake, path=path, store=self.options)
        return replace(self.settings, lake=lake)

    def rig(self, folder: Path, watch: Watch | None = None, **stream: Any) -> Rig:
        """Returns the epochs of a lake, for a process that has called `land_here`."""
        watch = watch or Watch()
        settings = self.of(folder)
        settings = replace(settings, stream=replace(settings.stream, **stream))
        lake = watch.lake(settings.lake.place(), is_driver=True)
        return LightRig(self.spark, settings, lake, watch.asker)

    def prepare(self) -> None:
        """Sends what all epochs land, and remembers where each ends."""
        wire, kafka = Wire(self.settings), KafkaTopics(self.settings, self.settings.kafka.topics())
        for number in range(3, LAST + 1):
            if number > 3:
                wire.end(COMMIT, wire.half(f"more{number}", body=b"more"))
            self.ends[number] = kafka.end_offsets(kafka.places())

    def go_on(self, rig: Rig, to_epoch: int) -> None:
        """Runs what is left of the story, from wherever the lake is."""
        last = rig.epochs.last
        assert last is not None
        assert isinstance(rig, LightRig)
        for number in range(3, to_epoch + 1):
            if last.epoch_at < self.at(number):
                rig.run_to(self.at(number), self.ends[number])


def story_of(settings: Settings, folder: Path, uri: str, options: dict[str, str]) -> LightStory:
    """Returns a story whose first two epochs are done, in the folder `before`."""
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    check_topic = f"{settings.kafka.check_topic_prefix}{ANSWERING}"
    for future in admin.create_topics([NewTopic(check_topic, 1)]).values():
        future.result(10)
    story = LightStory(NO_SPARK, settings, folder, int(time.time() * 1000), uri, options)
    with driver(folder.parent / "first.log", begin, story) as first:
        first.require_end(0)
    story.prepare()
    return story


def begin(story: LightStory) -> None:
    """Runs the first two epochs."""
    story.begin(Wire(story.settings), story.base_ms)


def run_all(story: LightStory, folder: Path, watch: Watch | None = None) -> None:
    """Runs the story to its end, as a start does: it finishes what another has planned."""
    with story.rig(folder, watch) as rig:
        rig.start()
        story.go_on(rig, LAST)


def maintain(story: LightStory, folder: Path, limits: MaintenanceLimits, at: str) -> None:
    """Maintains the lake as the job does after an epoch; stops once at a step, then goes on.

    Input: `at`: "question": right before it is asked whose the lake is, "files": right before files
    that nobody needs are deleted.
    """
    settings = story.of(folder)
    lake = Lake(settings.lake.place(), is_driver=True)
    last = read_progress(lake).last
    assert last is not None
    election = Election(settings.kafka, lake.path, last.owner)  # it asks the lake alone
    owned = Ownership(lake, last.owner, election, threading.Event()).require_newest
    stops = iter([stop_here])

    def look() -> None:
        next(stops, lambda: None)()
        owned()

    keeper = Maintainer(lake, limits, 0, settings.kafka.admin_topic, lambda: False, look)
    del at
    keeper.after_batch(last, 600.0)


class DriverProcess:
    """A process that does one thing to a lake. Input: its log, what it does, with which values."""

    def __init__(self, log: Path, work: Callable[..., None], *values: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._log = log
        self._process = context.Process(target=_run, args=(str(log), work, values))
        self._process.start()

    def wait_until_stopped(self) -> None:
        """Waits until all threads of the process are suspended; fails when it has ended."""

        def is_stopped() -> bool:
            assert self._process.is_alive(), self.said()
            states = [_state(task) for task in Path(f"/proc/{self._process.pid}/task").iterdir()]
            return all(state == "T" for state in states)

        wait_until(is_stopped, "the driver stops itself", 60.0, seen=self.said)

    def go_on(self) -> None:
        """Wakes the process."""
        self._signal(signal.SIGCONT)

    def require_end(self, code: int) -> None:
        """Waits until it has ended by itself, with an exit code."""
        self._process.join(60.0)
        assert self._process.exitcode == code, (self._process.exitcode, self.said())

    def said(self) -> str:
        """Returns what it has said."""
        return self._log.read_text() if self._log.exists() else ""

    def end(self) -> None:
        """Kills it, if it still runs."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


@contextlib.contextmanager
def driver(log: Path, work: Callable[..., None], *values: Any) -> Iterator[DriverProcess]:
    """Yields a process; kills it at the end."""
    process = DriverProcess(log, work, *values)
    try:
        yield process
    finally:
        process.end()


def _run(log: str, work: Callable[..., None], values: tuple[Any, ...]) -> None:
    """Does the work as the command line does: a known error is one sentence and exit code 1."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    land_here()
    try:
        work(*values)
    except KNOWN_ERRORS as error:
        failure = click.ClickException(str(error))
        failure.show()
        sys.exit(failure.exit_code)


def _state(task: Path) -> str:
    """Returns the state of a thread, as Linux tells it; T is suspended."""
    try:
        return (task / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""
