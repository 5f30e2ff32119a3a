"""One chaos run: its processes are started, killed, started again, and ended in good order."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from bench.chaos import producer, raw
from bench.chaos.journal import Journal, Seen
from bench.chaos.kills import SAYS, STARTING, STREAMING, WORKING, Kill
from bench.chaos.names import (
    BROKER,
    CONSUMED,
    CONSUMER,
    EXECUTORS,
    JOB,
    PRODUCERS,
    RAW,
    STOP_FILE,
    TOPIC_QUEUES,
)
from bench.chaos.programs import Programs
from bench.chaos.raw_journal import RawJournal
from bench.chaos.settled import has_met_a_late_end, is_seen, is_settled
from pipelines.local_broker.broker import Broker
from pipelines.operate.records import command, write
from pipelines.settings import load
from tests.support.cluster import Cluster
from tests.support.processes import Process
from txlake.protocol import CREATE_TOPIC

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
RECOVERED = "which an earlier run had planned"
REFUSED = "one driver at a time"
_POLL_S = 0.05
_LATE_END_S = 40.0  # a discard and an end after it take so long at most


class ChaosError(Exception):
    """The run cannot go on; the text says why."""


@dataclass
class Counts:
    """What happened, for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    own_deaths: int = 0  # of producers and the consumer, by their own hand
    refused_starts: int = 0
    recovered_epochs: int = 0
    start_s: list[float] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


class Chaos:
    """The processes of one run, in a folder; on leaving all of them are ended."""

    def __init__(self, lake: Path, folder: Path, seed: int, cluster: Cluster | None = None) -> None:
        self._cluster = cluster
        self.lake, self.folder, self.seed = lake.absolute(), folder.absolute(), seed
        for name in ("logs", "temp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.folder / "journal.sqlite")
        self.raw_journal = RawJournal(self.folder / "raw.sqlite")
        self.seen = Seen(self.folder / "seen.sqlite")
        self.counts = Counts()
        self.broker = Broker(self.folder / "kafka")
        self._running: dict[str, Process] = {}
        self._old: list[Process] = []
        self._is_measured = False
        self._programs = Programs(self, None if cluster is None else cluster.master)

    def __enter__(self) -> Chaos:
        """Starts everything."""
        try:
            self.broker.start()
            self._start(JOB)
            self._wait_until_job_says(SAYS[STREAMING])
            self._make_topics()
            for name in (*PRODUCERS, RAW, CONSUMER):
                self._start(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends everything, in whatever state it is."""
        for process in (*self._running.values(), *self._old):
            process.end()
        self.broker.stop()

    def carry_out(self, kill: Kill) -> None:
        """Waits for the moment, kills, and starts the killed one again at once."""
        if kill.when != STARTING:
            self._wait_until_job_says(SAYS[kill.when])
        end = time.monotonic() + kill.pause_s
        while time.monotonic() < end:
            self.look()
            time.sleep(_POLL_S)
        self.counts.kills[kill.name] += 1
        if kill.target == BROKER:
            self.broker.kill()
            self.broker.start()
            return
        if kill.target == EXECUTORS:
            self._kill_executor(kill.whom)
            return
        process = self._running.pop(kill.target)
        self._note_start(process)
        process.kill(kill.whom)
        if kill.whom == "jvm" and process.wait(END_TIMEOUT_S) is None:
            self.counts.unexpected.append(f"the job outlived its JVM by {END_TIMEOUT_S:.0f} s")
        self._retire(process, is_ended=kill.whom != "python")
        self._start(kill.target)

    def _kill_executor(self, part: str) -> None:
        """Kills by SIGKILL one of the processes that carry the bytes; Spark starts another."""
        assert self._cluster is not None
        found = {
            "an executor": self._cluster.executors, "a daemon": self._cluster.daemons,
            "a worker": self._cluster.python_workers,
        }[part]  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (there := found()) and time.monotonic() < deadline:
            self.look()
            time.sleep(_POLL_S)
        for chosen in there[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                chosen.kill()

    def look(self) -> None:
        """Starts again what ended by itself; notes when it should not have."""
        for name, process in list(self._running.items()):
            if name == JOB:
                self._note_start(process)
            if process.code is None:
                continue
            if name != JOB and process.code == -9:
                self.counts.own_deaths += 1
            elif name == JOB and process.has_said(REFUSED):
                self.counts.refused_starts += 1  # the killed one's JVM lives on for a moment
            else:
                self.counts.unexpected.append(
                    f"{name} ended with code {process.code}: {process.last_line()}"
                )
            is_again = name == JOB and process.has_said(REFUSED)
            self._retire(self._running.pop(name), is_ended=True)
            self._start(name, is_again=is_again)

    def restart_in_good_order(self) -> None:
        """Ends the job by SIGTERM when its policy has met a late end, and starts it again."""
        self._wait_until_job_says(SAYS[WORKING])
        deadline = time.monotonic() + _LATE_END_S
        self._wait(lambda: has_met_a_late_end(self, self._programs.settings_dealt), deadline, 0.5)
        self._end(JOB)
        self._start(JOB, is_last=True)
        self._wait_until_job_says(SAYS[STREAMING])

    def settle(self, timeout_s: float) -> None:
        """Stops sending, and waits until everything is decided and seen; ends all in good order.

        What is missing at the deadline is left for the comparison to name.
        """
        (self.folder / STOP_FILE).touch()
        deadline = time.monotonic() + timeout_s
        said = {**dict.fromkeys(PRODUCERS, producer.ANSWERING), RAW: raw.ENDED}
        has_come_to_rest = (
            self._wait(lambda: all(self._running[name].has_said(text)
                                   for name, text in said.items()), deadline)
            and self._wait(lambda: is_settled(self), deadline, 1.0)
            and self._wait(lambda: is_seen(self), deadline, 0.2)
        )  # fmt: skip
        if not has_come_to_rest:
            self.counts.unexpected.append(f"the run has not come to rest within {timeout_s:.0f} s")
        for name in (CONSUMER, *PRODUCERS, RAW, JOB):
            self._end(name)

    def _end(self, name: str) -> None:
        """Asks a process to end."""
        process = self._running.pop(name)
        self._note_start(process)
        process.terminate()
        code = process.wait(END_TIMEOUT_S)
        if code != 0:
            self.counts.unexpected.append(f"{name} ended with code {code} when asked to")
        self._retire(process, is_ended=True)

    def _wait(self, is_met: Callable[[], bool], deadline: float, pause_s: float = _POLL_S) -> bool:
        """Waits until something is so. Output: whether it was, before the deadline."""
        while not (has_met := is_met()) and time.monotonic() < deadline:
            self.look()
            time.sleep(pause_s)
        return has_met

    def _wait_until_job_says(self, text: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._running[JOB].has_said(text):
            if time.monotonic() > deadline:
                raise ChaosError(f"the job does not go on; {self._running[JOB].last_line()}")
            self.look()
            time.sleep(_POLL_S)
        self._note_start(self._running[JOB])

    def _note_start(self, process: Process) -> None:
        if not self._is_measured and process.has_said(SAYS[STREAMING]):
            self.counts.start_s.append(round(time.monotonic() - process.started_at, 1))
            self._is_measured = True

    def _make_topics(self) -> None:
        """Asks for the topics whose messages have to arrive, also where none is made on its own."""
        kafka = load(self._programs.settings).kafka
        for topic in CONSUMED:
            target = f"topic:{topic}:{TOPIC_QUEUES}"
            write(kafka, command(CREATE_TOPIC, target, "chaos", "before all messages"), "")

    def _start(self, name: str, *, is_again: bool = False, is_last: bool = False) -> None:
        """Starts a process. Input: `is_again`: a job that was refused, with the same settings."""
        if name == JOB:
            self._is_measured = False
            if not is_again:
                self._programs.deal_settings(is_last=is_last)
        self._running[name] = self._programs.start(name)

    def _retire(self, process: Process, is_ended: bool) -> None:
        """Ends what is left of a process; of a job whose Python was killed the JVM lives on."""
        if is_ended:
            process.end()
        else:
            self._old.append(process)
        if process.has_said(RECOVERED):
            self.counts.recovered_epochs += 1
