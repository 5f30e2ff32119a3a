"""One chaos run: its processes are started, killed, started again, and ended in good order."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from bench.chaos import producer, raw
from bench.chaos.drivers import ended_well, was_replaced
from bench.chaos.executors import kill_one
from bench.chaos.kafka_consumer import SESSION_TIMEOUT_MS
from bench.chaos.kills import SAYS, STOPPED, STREAMING, SUSPENDED, WORKING, Kill
from bench.chaos.names import (
    BROKER,
    CONSUMER,
    DRIVERS,
    EXECUTORS,
    JOB,
    KAFKA_CONSUMER,
    PRODUCERS,
    PUBLISHERS,
    RAW,
    STANDBY,
    STOP_FILE,
)
from bench.chaos.programs import Programs
from bench.chaos.published_compare import Published, is_published, read_published
from bench.chaos.settings import PUBLISHER_TIMEOUT_MS
from bench.chaos.settled import has_common, has_met_a_late_end, is_seen, is_settled
from bench.chaos.stage import Stage
from bench.lake_store import LakeStore
from tests.support.cluster import Cluster
from tests.support.processes import Process

START_TIMEOUT_S = 600.0  # beside other work a landing took 40 s
END_TIMEOUT_S = 240.0
RECOVERED = "which an earlier run had planned"
_POLL_S = 0.05
_LATE_END_S = 240.0  # a discard and an end after it take 40 s at most, on a quiet machine
_COMMON_S = 600.0
_LOSING_S = 15.0  # after a kill: about as long as a job needs to start


class ChaosError(Exception):
    """The run cannot go on; the text says why."""


@dataclass
class Counts:
    """What happened, for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    own_deaths: int = 0  # of producers and the consumer, by their own hand
    refused_starts: int = 0
    replaced: int = 0  # drivers that ended because another one was active
    recovered_epochs: int = 0
    lost_answers: list[int] = field(default_factory=list)  # one a kill that was to lose some
    unexpected: list[str] = field(default_factory=list)


class Chaos(Stage):
    """The processes of one run, in a folder; on leaving all of them are ended."""

    def __init__(
        self,
        lake: Path,
        folder: Path,
        seed: int,
        cluster: Cluster | None = None,
        store: LakeStore | None = None,
        drivers: int = 1,
        *,
        is_published: bool = False,
    ) -> None:
        super().__init__(lake, folder, seed, store, drivers, is_published=is_published)
        self.published: Published | None = None  # read at the end, while the broker runs
        self._cluster, self._store = cluster, store
        self.counts = Counts()
        self._running: dict[str, Process] = {}
        self._old: list[Process] = []
        self._programs = Programs(self, None if cluster is None else cluster.master)

    @property
    def _publishing(self) -> tuple[str, ...]:
        return (*PUBLISHERS, KAFKA_CONSUMER) if self.is_published else ()

    def __enter__(self) -> Chaos:
        """Starts everything."""
        try:
            self.broker.start()
            self._programs.write_conf()
            for name in self.drivers.names:
                self._start(name)
            self._wait_until_says(JOB, SAYS[STREAMING])

            self._programs.make_topics()

            for name in (*PRODUCERS, RAW, CONSUMER, *self._publishing):
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
        if kill.says:
            self._wait_until_says(kill.target, kill.says)
        if not kill.loses_answers:
            self._strike(kill)
            return

        assert self._store is not None
        with self._store.losing_answers() as losing:
            self._strike(kill)
            self._pause(_LOSING_S)
            self.counts.lost_answers.append(losing.hits)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(_POLL_S)

    def _strike(self, kill: Kill) -> None:
        """Kills after a pause, and starts the killed one again at once."""
        self._pause(kill.pause_s)
        self.counts.kills[kill.name] += 1

        if kill.target == BROKER:
            self.broker.kill()
            self.broker.start()
        elif kill.target == EXECUTORS:
            assert self._cluster is not None
            kill_one(self._cluster, kill.whom, self.look)
        elif kill.target in (JOB, STANDBY):
            # Who is active may have ended meanwhile.
            self._hit(self.drivers.in_role(kill.target) or self.drivers.running[0], kill)
        else:
            self._hit(kill.target, kill)

    def _hit(self, name: str, kill: Kill) -> None:
        """Kills, stops or suspends one process."""
        if kill.whom == SUSPENDED and name in PUBLISHERS:
            self._suspend(name)
            return

        if kill.whom == SUSPENDED:
            self.drivers.suspend(name, kill.pause_s)
            return

        if kill.whom == STOPPED:
            self._end(name)
            self._start(name)
            return

        process = self._taken(name)
        process.kill(kill.whom)

        if kill.whom == "jvm" and process.wait(END_TIMEOUT_S) is None:
            self.counts.unexpected.append(f"{name} outlived its JVM by {END_TIMEOUT_S:.0f} s")

        self._retire(process, is_ended=kill.whom != "python")
        self._start(name)

    def _suspend(self, name: str) -> None:
        """Suspends a publisher for longer than Kafka waits for it and for its transaction."""
        self._running[name].signal(signal.SIGSTOP)
        try:
            self._pause((PUBLISHER_TIMEOUT_MS + SESSION_TIMEOUT_MS) / 1_000)
        finally:
            self._running[name].signal(signal.SIGCONT)

    def _taken(self, name: str) -> Process:
        """Takes a process out of those that run; it is not suspended any more."""
        if name in DRIVERS:
            self.drivers.look()
            self.drivers.wake(name)
            self.drivers.ended(name)
        return self._running.pop(name)

    def look(self) -> None:
        """Starts again what ended by itself; notes when it should not have."""
        self.drivers.look()
        for name, process in list(self._running.items()):
            if process.code is None:
                continue

            is_refused = name in DRIVERS and self.drivers.was_refused(process)
            if name not in DRIVERS and process.code == -9:
                self.counts.own_deaths += 1
            elif is_refused:
                self.counts.refused_starts += 1  # the killed one's JVM lives on for a moment
            elif name in DRIVERS and was_replaced(process):
                self.counts.replaced += 1
            else:
                self.counts.unexpected.append(
                    f"{name} ended with code {process.code}: {process.last_line()}"
                )

            self._retire(self._taken(name), is_ended=True)
            self._start(name, is_again=is_refused)

    def restart_in_good_order(self) -> None:
        """Ends the job by SIGTERM when its policy has met a late end; starts it alone again."""
        self._wait_until_says(JOB, SAYS[WORKING])
        deadline = time.monotonic() + _LATE_END_S
        dealt = self._programs.settings_dealt
        self._wait(
            lambda: has_met_a_late_end(self, dealt[self.drivers.in_role(JOB) or JOB]), deadline, 0.5
        )
        for name in self.drivers.running:
            self._end(name)
        self._start(JOB, is_last=True)
        self._wait_until_says(JOB, SAYS[STREAMING])

    def wait_for_common(self) -> None:
        """Goes on until all has happened that does in any run: a slow machine tells few stories."""
        self._wait(lambda: has_common(self), time.monotonic() + _COMMON_S, 1.0)

    def settle(self, timeout_s: float) -> None:
        """Stops sending, and waits until everything is decided and seen; ends all in good order.

        What is missing at the deadline is left for the comparison to name.
        """
        (self.folder / STOP_FILE).touch()
        deadline = time.monotonic() + timeout_s
        said = {**dict.fromkeys(PRODUCERS, producer.ANSWERING), RAW: raw.ENDED}

        has_come_to_rest = (
            self._wait(
                lambda: all(self._running[name].has_said(text) for name, text in said.items()),
                deadline,
            )
            and self._wait(lambda: is_settled(self), deadline, 1.0)
            and self._wait(lambda: is_seen(self), deadline, 0.2)
            and (not self.is_published or self._wait(lambda: is_published(self), deadline, 1.0))
        )

        if not has_come_to_rest:
            self.counts.unexpected.append(f"the run has not come to rest within {timeout_s:.0f} s")

        for name in (CONSUMER, *PRODUCERS, RAW, *self._publishing, *self.drivers.running):
            self._end(name)

        if self.is_published:
            self.published = read_published(self.settings)

    def _end(self, name: str) -> None:
        """Asks a process to end."""
        process = self._taken(name)
        process.terminate()
        code = process.wait(END_TIMEOUT_S)
        if code != 0 and not (name in DRIVERS and ended_well(process, code)):
            self.counts.unexpected.append(f"{name} ended with code {code} when asked to")
        self._retire(process, is_ended=True)

    def _wait(self, is_met: Callable[[], bool], deadline: float, pause_s: float = _POLL_S) -> bool:
        """Waits until something is so. Output: whether it was, before the deadline."""
        while not (has_met := is_met()) and time.monotonic() < deadline:
            self.look()
            time.sleep(pause_s)
        return has_met

    def _wait_until_says(self, role: str, texts: Sequence[str]) -> None:
        """Waits until the active driver, or a standby, has said these texts, in this order."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (name := self.drivers.in_role(role)) is None or not self._running[name].has_said(
            *texts
        ):
            if time.monotonic() > deadline:
                said = {name: self._running[name].last_line() for name in self.drivers.running}
                raise ChaosError(f"the job does not go on; {said}")
            self.look()
            time.sleep(_POLL_S)
        self.drivers.look()

    def _start(self, name: str, *, is_again: bool = False, is_last: bool = False) -> None:
        """Starts a process. Input: `is_again`: a job that was refused, with the same settings."""
        if name in DRIVERS and not is_again:
            self._programs.deal_settings(name, is_last=is_last)
        self._running[name] = self._programs.start(name)
        if name in DRIVERS:
            self.drivers.started(name, self._running[name])

    def _retire(self, process: Process, is_ended: bool) -> None:
        """Ends what is left of a process; of a job whose Python was killed the JVM lives on."""
        if is_ended:
            process.end()
        else:
            self._old.append(process)
        if process.has_said(RECOVERED):
            self.counts.recovered_epochs += 1
