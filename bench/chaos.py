"""Kill the job, its producers and its consumer again and again, then count: nothing lost or twice.

    python -m bench.chaos --kills 100 --seed 1 --report build/chaos.json

A real broker, the job, two producers and a consumer, each a process of its own. A seed fixes who is
killed how, and after how long; what the killed one was just doing it cannot fix. At the end the
producers stop sending, everything is decided, and the producers' journal, the lake's tables and
what the consumer saw are compared (`bench/chaos_compare.py`) and `txlake verify` looks at the lake.

Exit code: 0 when all agree; 1 with every difference named. Without --lake all files are in a
temporary folder, which stays only when something differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench import chaos_consumer, chaos_producer
from bench.chaos_compare import Facts, compare, read_facts, undecided
from bench.chaos_journal import COMMIT, ROLLBACK, Journal, Seen
from bench.chaos_processes import Process
from pipelines.broker import Broker
from storage.lake import Lake
from storage.verify.run import verify
from txlake import protocol

JOB, CONSUMER, BROKER = "job", "consumer", "broker"
PRODUCERS = ("producer-a", "producer-b")
PAUSE_S_MIN = 0.2
CHECK_MAX = 8
QUEUES = 3
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
# When a job may be killed, and what it has said then.
STARTING, STREAMING, WORKING = "while it starts", "while it streams", "after its first epoch"
SAYS = {STREAMING: "running; owner", WORKING: "records landed"}
RECOVERED = "which an earlier run had planned"
REFUSED = "one driver at a time"
_POLL_S = 0.05
_SETTINGS = """[lake]
path = {lake}
pending_snapshot_epochs = 10

[kafka]
bootstrap_servers = "{bootstrap_servers}"
queues = {queues}

[transaction]
transaction_timeout_ms = 1000
check_interval_ms = 1000
check_max = {check_max}
ask_timeout_ms = 2000

[delay]
levels = "1s"

[stream]
trigger_interval_ms = 200

[maintenance]
merge_files = 4
checkpoint_commits = 4
log_retention_ms = 60000
file_retention_ms = 60000
"""


class ChaosError(Exception):
    """The run cannot go on; the text says why."""


@dataclass(frozen=True)
class Kill:
    """Whom to kill, and how. `pause_s` is counted from the last kill, or from when it says so.

    `whom`: of the job's processes: python, jvm, all. `when`: what to wait for first; STARTING is
    nothing, for a job that is just starting or recovering.
    """

    target: str
    whom: str
    when: str
    pause_s: float

    @property
    def name(self) -> str:
        """Say whom it kills, and a job how and when."""
        return f"{self.target} ({self.whom}) {self.when}" if self.target == JOB else self.target


@dataclass
class Counts:
    """What happened, for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    own_deaths: int = 0  # of producers and the consumer, by their own hand
    refused_starts: int = 0
    recovered_epochs: int = 0
    start_s: list[float] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


def schedule(kills: int, seed: int, pause_s_max: float, has_broker: bool = False) -> list[Kill]:
    """Give the kills of a seed."""
    rng = random.Random(seed)
    targets = {JOB: 10, PRODUCERS[0]: 3, PRODUCERS[1]: 3, CONSUMER: 4}
    if has_broker:
        targets[BROKER] = 2
    found = []
    for _ in range(kills):
        target = rng.choices(list(targets), targets.values())[0]
        whom = rng.choices(("all", "python", "jvm"), (5, 3, 2))[0] if target == JOB else "all"
        weights = (0 if whom == "jvm" else 6, 4, 10)  # before there is a JVM none can be killed
        when = rng.choices((STARTING, STREAMING, WORKING), weights)[0]
        pause_s = rng.uniform(PAUSE_S_MIN, pause_s_max)
        found.append(Kill(target, whom, when if target == JOB else STARTING, pause_s))
    return found


class Chaos:
    """The processes of one run, in a folder; on leaving all of them are ended."""

    def __init__(self, lake: Path, folder: Path, seed: int) -> None:
        self.lake, self.folder, self.seed = lake.absolute(), folder.absolute(), seed
        for name in ("logs", "temp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.folder / "journal.sqlite")
        self.seen = Seen(self.folder / "seen.sqlite")
        self.counts = Counts()
        self.broker = Broker(self.folder / "kafka")
        self._running: dict[str, Process] = {}
        self._old: list[Process] = []
        self._starts: Counter[str] = Counter()
        self._is_measured = False

    def __enter__(self) -> Chaos:
        """Start everything."""
        try:
            self.broker.start()
            self._write_settings()
            self._start(JOB)
            self._wait_until_job_says(SAYS[STREAMING])
            for name in (*PRODUCERS, CONSUMER):
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
        """End everything, in whatever state it is."""
        for process in (*self._running.values(), *self._old):
            process.end()
        self.broker.stop()

    def carry_out(self, kill: Kill) -> None:
        """Wait for the moment, kill, and start the killed one again at once."""
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
        process = self._running.pop(kill.target)
        self._note_start(process)
        process.kill(kill.whom)
        if kill.whom == "jvm" and process.wait(END_TIMEOUT_S) is None:
            self.counts.unexpected.append(f"the job outlived its JVM by {END_TIMEOUT_S:.0f} s")
        self._retire(process, is_ended=kill.whom != "python")
        self._start(kill.target)

    def look(self) -> None:
        """Start again what ended by itself; note when it should not have."""
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
            self._retire(self._running.pop(name), is_ended=True)
            self._start(name)

    def settle(self, timeout_s: float) -> None:
        """Stop sending, and wait until everything is decided and seen; then end all in good order.

        What is missing at the deadline is left for the comparison to name.
        """
        (self.folder / chaos_producer.STOP_FILE).touch()
        deadline = time.monotonic() + timeout_s
        said = "answering checks"
        self._wait(lambda: all(self._running[name].has_said(said) for name in PRODUCERS), deadline)
        self._wait(self._is_settled, deadline, 1.0)
        self._wait(self._is_seen, deadline, 0.2)
        for name in (CONSUMER, *PRODUCERS, JOB):
            process = self._running.pop(name)
            self._note_start(process)
            process.terminate()
            code = process.wait(END_TIMEOUT_S)
            if code != 0:
                self.counts.unexpected.append(f"{name} ended with code {code} when asked to")
            self._retire(process, is_ended=True)

    def _wait(self, is_met: Callable[[], bool], deadline: float, pause_s: float = _POLL_S) -> None:
        while not is_met() and time.monotonic() < deadline:
            self.look()
            time.sleep(pause_s)

    def _is_settled(self) -> bool:
        lake = Lake(str(self.lake))
        for table, topic in (("half", protocol.HALF_TOPIC), ("op", protocol.OP_TOPIC)):
            if lake.handle(table).to_pyarrow_dataset().count_rows() != self._end_of(topic):
                return False
        facts = read_facts(lake)
        if undecided(facts, self.journal):
            return False
        delivered = sum(len(facts.messages.get(t, [])) for t in chaos_producer.TOPICS)
        return delivered >= len(self.journal.committed())

    def _is_seen(self) -> bool:
        facts = read_facts(Lake(str(self.lake)))
        there = sum(len(facts.messages.get(t, [])) for t in chaos_producer.TOPICS)
        return self.seen.count() >= there

    def _end_of(self, topic: str) -> int:
        """Count the records of a Kafka topic; -1 while Kafka does not answer."""
        kafka = Consumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "chaos-look",
             "log_level": 0}
        )  # fmt: skip
        try:
            ends = [
                kafka.get_watermark_offsets(TopicPartition(topic, queue), timeout=5)[1]
                for queue in range(QUEUES)
            ]
        except KafkaException:
            return -1
        finally:
            kafka.close()
        return sum(ends)

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

    def _start(self, name: str) -> None:
        self._starts[name] += 1
        number = self._starts[name]
        of_start = ["--name", f"{name}-{number}", "--seed", str(self.seed)]
        if name == JOB:
            self._is_measured = False
            module, arguments = "pipelines", ["run", "--conf", str(self.folder / "job.toml")]
        elif name == CONSUMER:
            module = chaos_consumer.__spec__.name
            arguments = ["--lake", str(self.lake), "--seen", str(self.seen.path), *of_start]
        else:
            module = chaos_producer.__spec__.name
            arguments = [
                "--bootstrap-servers", self.broker.bootstrap_servers,
                "--journal", str(self.journal.path),
                *of_start,
            ]  # fmt: skip
        log = self.folder / "logs" / f"{name}-{number:03}.log"
        self._running[name] = Process(module, arguments, log, self.folder / "temp")

    def _retire(self, process: Process, is_ended: bool) -> None:
        """End what is left of a process; of a job whose Python was killed let the JVM live on."""
        if is_ended:
            process.end()
        else:
            self._old.append(process)
        if process.has_said(RECOVERED):
            self.counts.recovered_epochs += 1

    def _write_settings(self) -> None:
        text = _SETTINGS.format(
            lake=json.dumps(str(self.lake)),  # a JSON text is a TOML text
            bootstrap_servers=self.broker.bootstrap_servers,
            queues=QUEUES,
            check_max=CHECK_MAX,
        )
        (self.folder / "job.toml").write_text(text, "utf-8")


def differences(chaos: Chaos, facts: Facts) -> list[str]:
    """Give all that is not as it should be; `txlake verify`'s findings too."""
    found = compare(facts, chaos.journal, chaos.seen, CHECK_MAX)
    for finding in verify(Lake(str(chaos.lake))).findings:
        found += [f"verify: {finding.invariant.name}: {row}" for row in finding.rows]
    return [*found, *chaos.counts.unexpected]


def report(chaos: Chaos, facts: Facts, seconds: float, found: Sequence[str]) -> dict[str, Any]:
    """Give the figures of a run."""
    ends = chaos.journal.ends()
    seen = chaos.seen.rows()
    counts = chaos.counts
    epochs = Lake(str(chaos.lake)).read("epochs", ["state", "owner"]).to_pylist()
    return {
        "seed": chaos.seed,
        "seconds": round(seconds),
        "kills": dict(counts.kills),
        "kills_in_all": sum(counts.kills.values()),
        "dead_by_their_own_hand": counts.own_deaths,
        "job_starts_refused_while_the_jvm_lived": counts.refused_starts,
        "job_starts_that_finished_an_epoch": counts.recovered_epochs,
        "job_start_s_median": statistics.median(counts.start_s) if counts.start_s else None,
        "epochs": sum(row["state"] == "committed" for row in epochs),
        "job_owners": len({row["owner"] for row in epochs}),
        "halves": len(facts.halves),
        "transactions": dict(Counter(end for end, _ in ends.values())),
        "committed_in": dict(Counter(why for end, why in ends.values() if end == COMMIT)),
        "rolled_back_by": dict(Counter(why for end, why in ends.values() if end == ROLLBACK)),
        "outcomes": dict(Counter(f"{e['outcome']} {e['cause']}" for e in facts.ends.values())),
        "messages": {topic: len(rows) for topic, rows in facts.messages.items()},
        "checks": len(facts.checks),
        "conflicts": dict(Counter(row["reason"] for row in facts.conflicts)),
        "seen_by_the_consumer": len(seen),
        "seen_more_than_once": sum(times > 1 for *_, times in seen),
        "differences": list(found),
    }


def run(
    lake: Path, folder: Path, kills: Sequence[Kill], seed: int,
    say: Callable[[str], None] = lambda text: None, seconds_max: float = float("inf"),
) -> tuple[Chaos, Mapping[str, Any]]:  # fmt: skip
    """Carry out kills and compare. Output: the ended run and its report.

    After `seconds_max` no more are killed; the report counts those that were.
    """
    started = time.monotonic()
    chaos = Chaos(lake, folder, seed)
    with chaos:
        for number, kill in enumerate(kills, 1):
            if time.monotonic() - started > seconds_max:
                break
            chaos.carry_out(kill)
            say(
                f"{time.monotonic() - started:6.1f} s, kill {number} of {len(kills)}:"
                f" {kill.name} + {kill.pause_s:.1f} s"
            )
        chaos.settle(120.0 + 0.5 * len(kills))
        say(f"{time.monotonic() - started:6.1f} s: all ended; comparing")
    facts = read_facts(Lake(str(chaos.lake)))
    found = differences(chaos, facts)
    return chaos, report(chaos, facts, time.monotonic() - started, found)


def main() -> None:
    """Read the command line, run, print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause-max", type=float, default=8.0, help="seconds before a kill")
    parser.add_argument("--minutes-max", type=float, default=60.0, help="kill no longer than this")
    parser.add_argument("--kill-broker", action="store_true", help="the broker is killed too")
    parser.add_argument("--lake", type=Path, help="a new folder; other files go beside it")
    parser.add_argument("--report", type=Path, help="write the report there as JSON")
    options = parser.parse_args()
    kills = schedule(options.kills, options.seed, options.pause_max, options.kill_broker)
    temp = None if options.lake else Path(tempfile.mkdtemp(prefix="txlake-chaos-"))
    lake = options.lake or (temp or Path()) / "lake"
    if lake.exists() and any(lake.iterdir()):
        parser.error(f"{lake} is not empty: name a new folder")
    is_agreed = False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything is ended on the way out
    try:
        folder = lake.with_name(f"{lake.name}-files")
        _, figures = run(
            lake, folder, kills, options.seed, lambda text: print(text, flush=True),
            60 * options.minutes_max,
        )  # fmt: skip
        text = json.dumps(figures, indent=1, default=str)
        print(text)
        if options.report:
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text(text + "\n", "utf-8")
        is_agreed = not figures["differences"]
    finally:
        if temp is not None:
            if is_agreed:
                shutil.rmtree(temp, ignore_errors=True)
            else:
                print(f"what is left of the run is in {temp}", file=sys.stderr)
    sys.exit(0 if is_agreed else 1)


if __name__ == "__main__":
    main()
