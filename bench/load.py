"""The whole at work: broker, job, the SDK's producer and consumer, each a process of its own."""

from __future__ import annotations

import json
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.counter_file import CounterFile
from bench.job_process import BenchError, JobProcess
from bench.usage import Watch, processor_s
from bench.workbench import Workbench
from pipelines.jvm.arrow_memory import ENVIRONMENT
from tests.support.processes import Process

_END_TIMEOUT_S = 60.0
_SETTLE_S = 120.0
_LOOK_S = 1.0
_WARM_UP_EPOCHS = 2
# Where epochs are slow the time measured is longer, up to three times, so that it has some of them.
_EPOCHS_MIN, _LONGER = 4, 2
_SAID_MAX = 4_000
_CONSUMER = "bench.load_consumer"
_KAFKA_CONSUMER = "bench.load_kafka_consumer"
# When messages became readable is read from the tables' logs afterwards.
_KEEP_LOGS: dict[str, Any] = {
    "log_retention_ms": 86_400_000,
    "file_retention_ms": 86_400_000,
}


@dataclass
class LoadRun:
    """What was seen while the load lasted, the warm-up left out. Units: s since 1970."""

    job: JobProcess
    began_at: float = 0.0
    ended_at: float = 0.0
    processor: dict[str, float] = field(default_factory=dict)  # cores, by process
    resident_bytes: list[int] = field(default_factory=list)  # of the job
    counts: list[tuple[float, int, int]] = field(default_factory=list)  # at, committed, consumed
    consumer_ms: list[tuple[float, float]] = field(default_factory=list)  # at, age of a message
    sent: int = 0  # all of it, the warm-up too

    def ages_ms(self) -> list[float]:
        """Return how old messages were when the consumer had them."""
        return [ms for at, ms in self.consumer_ms if self.began_at <= at <= self.ended_at]


def run_load(
    bench: Workbench,
    name: str,
    seconds: float,
    arguments: list[str],
    *,
    watches_memory: bool = True,
    consumes_kafka: bool = False,
    **sections: dict[str, Any],
) -> LoadRun:
    """Let a producer send for a warm-up and some seconds more; wait until all is consumed.

    Input: `arguments` of the producer; `watches_memory`: looking at it takes 3 % of two cores;
    `consumes_kafka`: a publisher and a consumer of Kafka stand in place of the SDK's consumer.
    """
    name = bench.new_name(name)
    sections = {"maintenance": _KEEP_LOGS, **sections}
    folder = bench.folder / f"load-{name}"
    folder.mkdir()

    job = bench.job(name, None, **sections)
    run = LoadRun(job)

    with job:
        job.wait_until_streaming()
        processes = {"producer": producer(bench, job.conf, folder, arguments)}
        try:
            if consumes_kafka:
                processes["publisher"] = publisher(bench, job.conf, folder)
            processes["consumer"] = consumer(
                bench, job.conf, folder, _KAFKA_CONSUMER if consumes_kafka else _CONSUMER
            )
            time.sleep(bench.size.warm_up_s)
            # On a slow machine the warm-up may be over before the first epochs are.
            wait_for_epochs(job, _WARM_UP_EPOCHS)

            with Watch(job.group) if watches_memory else nullcontext() as watch:
                _watch(bench, run, processes, folder, seconds)
            run.resident_bytes = watch.resident_bytes if watch else []

            end(processes["producer"])
            run.sent = wait_until_consumed(job, folder)
            end(processes["consumer"])
            if consumes_kafka:
                end(processes["publisher"])
            run.consumer_ms = json.loads((folder / "samples.json").read_text("utf-8"))
        finally:
            for process in processes.values():
                process.end()
    return run


def _watch(
    bench: Workbench, run: LoadRun, processes: dict[str, Process], folder: Path, seconds: float
) -> None:
    groups = {name: process.pid for name, process in processes.items()}
    groups["job"] = run.job.group
    groups["broker"] = bench.broker.pid
    sent, consumed = counters(folder)

    before = {name: processor_s(group) for name, group in groups.items()}
    run.began_at = time.time()
    run.job.landed()
    epochs = run.job.epochs + _EPOCHS_MIN
    while (left := run.began_at + seconds - time.time()) > 0 or (
        run.job.epochs < epochs and left > -_LONGER * seconds
    ):
        for name, process in (*processes.items(), ("job", run.job.process)):
            if process.code is not None:
                raise BenchError(f"the {name} ended: {process.last_line()}")

        run.counts.append((time.time(), sent.read()[1], consumed.read()[0]))
        time.sleep(min(_LOOK_S, left) if left > 0 else _LOOK_S)
        run.job.landed()

    run.ended_at = time.time()
    spent = run.ended_at - run.began_at
    run.processor = {
        name: round((processor_s(group) - before[name]) / spent, 3)
        for name, group in groups.items()
    }


def wait_for_epochs(job: JobProcess, count: int) -> None:
    """Wait until so many epochs of a job had records."""

    def has_them() -> bool:
        job.landed()
        return job.epochs >= count

    job.wait_for(has_them, f"{count} epochs", _SETTLE_S)


def wait_until_consumed(job: JobProcess, folder: Path) -> int:
    """Wait until the consumer has all that the ended producer committed. Output: what was sent."""
    sent, consumed = counters(folder)
    count, committed = sent.read()
    job.wait_for(lambda: consumed.read()[0] >= committed, "all is consumed", _SETTLE_S)
    return count


def counters(folder: Path) -> tuple[CounterFile, CounterFile]:
    """Return what the producer counts (sent, committed), and what the consumer does."""
    return CounterFile(folder / "sent", 2), CounterFile(folder / "consumed", 1)


def producer(bench: Workbench, conf: Path, folder: Path, arguments: list[str]) -> Process:
    """Start a producer. Input: `folder`: for its counts and its log; further `arguments`."""
    of_files = ["--sent", str(folder / "sent"), "--consumed", str(folder / "consumed")]
    return _start(bench, "bench.load_producer", conf, folder, [*of_files, *arguments])


def consumer(bench: Workbench, conf: Path, folder: Path, module: str = _CONSUMER) -> Process:
    """Start a consumer. Input: `folder` of its producer."""
    of_files = ["--consumed", str(folder / "consumed"), "--samples", str(folder / "samples.json")]
    return _start(bench, module, conf, folder, of_files)


def publisher(bench: Workbench, conf: Path, folder: Path) -> Process:
    """Start the publisher of a job's settings. Input: `folder`: for its log."""
    command = ["publish", "--conf", str(conf)]
    return Process("pipelines", command, folder / "publisher.log", bench.folder / "temp")


def _start(
    bench: Workbench, module: str, conf: Path, folder: Path, arguments: list[str]
) -> Process:
    log = folder / f"{module.rpartition('.')[2]}.log"
    arguments = ["--conf", str(conf), *arguments]
    temp = bench.folder / "temp"
    # KEPT: as docs/sdk.md advises for consumers.
    return Process(module, arguments, log, temp, variables=ENVIRONMENT)


def end(process: Process) -> None:
    """Stop a process in good order.

    Errors: BenchError with what it said last, and where its threads stand if it does not end.
    """
    process.terminate()
    code = process.wait(_END_TIMEOUT_S)
    if code is None:
        process.signal(signal.SIGUSR1)
        process.wait(1.0)
    if code != 0:
        said = process.log.read_text("utf-8", "replace")[-_SAID_MAX:]
        raise BenchError(f"{process.log.stem} ended with code {code} (None: not at all):\n{said}")
