"""What `txlake publish` takes: drains of a lake that is there, latency beside commits.

    python -m bench.publishing --report docs/benchmarks/publishing

The lake is written as a job lays it out, without Kafka and Spark; the broker is a real one of this
machine, the publisher a process of its own. In the rounds all processes run together, in turns:
the SDK's consumer reads, or a publisher and a consumer of Kafka stand in its place.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench import machine
from bench.figure import Figure
from bench.figures.sustained import UNDER_LOAD, sustained_rate
from bench.load import run_load
from bench.message_lake import QUEUES, TOPIC_NAME, MessageLake
from bench.report import Report, number_text, write
from bench.sizes import SMALL
from bench.workbench import Workbench
from pipelines.local_broker.broker import Broker
from txlake.protocol import QUEUE_OFFSET

EPOCH_MESSAGES = 20_000
_SMALL_BYTES = 256
_DRAINS = {256: (60_000, 150_000), 2_048: (40_000, 80_000)}  # must and aim, by size of a body
_COLD_EPOCHS = 1
_SETTLE_S = 2.0
_IDLE_S = 10.0


def settings_of(folder: Path, lake: MessageLake, broker: Broker, name: str) -> Path:
    """Writes the settings of a publisher."""
    path = folder / f"{name}.toml"
    path.write_text(
        f'[lake]\npath = "{lake.lake.path}"\n[kafka]\n'
        f'bootstrap_servers = "{broker.bootstrap_servers}"\n[publish.{name}]\n'
        f'destination = "{name}-{{topic}}"\nprogress_topic = "{name}-progress"\n'
    )
    return path


class PublisherRun:
    """A publisher's process, and what it takes."""

    def __init__(self, conf: Path, *more: str) -> None:
        command = [sys.executable, *more, "-m", "pipelines", "publish", "--conf", str(conf)]
        self._process = subprocess.Popen(command)
        self.seen = psutil.Process(self._process.pid)
        self.memory_mb = 0.0

    def cpu_s(self) -> float:
        """Returns the processor time so far. Errors: RuntimeError if the publisher has ended."""
        if self._process.poll() is not None:
            raise RuntimeError("the publisher has ended; its error is above")

        times = self.seen.cpu_times()
        self.memory_mb = max(self.memory_mb, self.seen.memory_info().rss / 1e6)
        return float(times.user + times.system)

    def end(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(60)


def ends_of(consumer: Consumer, topic: str) -> int:
    """Returns how many offsets a topic has, markers among them."""
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, q), timeout=10)[1]
            for q in range(QUEUES)
        )
    except KafkaException:  # it is not there yet
        return 0


def drain(folder: Path, broker: Broker, messages: int, size: int) -> list[Figure]:
    """Let a publisher drain a lake; then look at it without anything to do."""
    name = f"drain{size}"
    lake = MessageLake(folder / name, size)
    while lake.next_offset * QUEUES < messages:
        lake.commit(EPOCH_MESSAGES)

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "b",
            "log_level": 0,
            # A topic that was seen while it was made has no partitions until the next refresh.
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    run = PublisherRun(settings_of(folder, lake, broker, name))
    topic = f"{name}-{TOPIC_NAME}"
    while not ends_of(consumer, topic):
        time.sleep(0.02)
        run.cpu_s()

    began = time.monotonic()
    used = run.cpu_s()
    while ends_of(consumer, topic) < messages:
        time.sleep(0.05)
        run.cpu_s()
    took, used = time.monotonic() - began, run.cpu_s() - used

    time.sleep(_SETTLE_S)
    idle = run.cpu_s()
    time.sleep(_IDLE_S)
    idle = (run.cpu_s() - idle) / _IDLE_S
    run.end()

    is_small = size == _SMALL_BYTES
    parameters = {"messages": messages, "body_bytes": size, "messages_of_an_epoch": EPOCH_MESSAGES}
    must, aim = _DRAINS.get(size, (None, None))
    return [
        Figure(
            f"drain, {size} B",
            messages / took,
            "messages/s",
            "messages of a lake that is there / time from the first of them in Kafka to the last",
            must=must,
            aim=aim,
            parameters=parameters,
        ),
        Figure(
            f"processor time, {size} B",
            used / messages * 1e6,
            "us a message",
            "of the publisher in that drain",
            better="less",
            must=12 if is_small else None,
            aim=6 if is_small else None,
        ),
        Figure(
            f"memory, {size} B",
            run.memory_mb,
            "MB",
            "the publisher's largest resident set, in that drain and after it",
            better="less",
            must=300,
            aim=150,
        ),
        Figure(
            f"idle, {size} B",
            idle,
            "cores",
            f"processor time of the publisher / time, {_IDLE_S:.0f} s after that drain",
            better="less",
            must=0.02,
            aim=0.005,
        ),
    ]


def latency(folder: Path, broker: Broker, seconds: int) -> list[Figure]:
    """See how long after an epoch's commit a consumer has its messages, at 1,000 a second."""
    name = "latency"
    lake = MessageLake(folder / name, _SMALL_BYTES)
    lake.commit(1_000)
    run = PublisherRun(settings_of(folder, lake, broker, name))
    committed: dict[int, float] = {}
    stop = threading.Event()

    def commit() -> None:
        while not stop.is_set():
            began = time.monotonic()
            first = lake.next_offset
            lake.commit(1_000)
            committed[first] = time.monotonic()
            stop.wait(max(0.0, 1.0 - (time.monotonic() - began)))

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": name,
            "log_level": 0,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    consumer.subscribe([f"{name}-{TOPIC_NAME}"])
    writer = threading.Thread(target=commit)
    writer.start()
    seen: dict[int, float] = {}
    until = time.monotonic() + seconds

    while time.monotonic() < until:
        for message in consumer.consume(2_000, 0.05):
            if message.error() is None:
                seen[_queue_offset(message)] = time.monotonic()

    stop.set()
    writer.join()
    run.end()

    waits = [seen[first] - at for first, at in sorted(committed.items()) if first in seen]
    steady = sorted(waits[_COLD_EPOCHS:])
    p99 = steady[: int(len(steady) * 0.99) or 1][-1]
    details = {"epochs": len(steady), "longest": round(steady[-1], 3)}
    how = "from the return of an epoch's commit to its first message at a read_committed consumer"
    return [
        Figure(
            "latency, p50",
            statistics.median(steady),
            "s",
            how,
            better="less",
            must=0.25,
            aim=0.12,
            samples=[round(each, 3) for each in steady],
            details=details,
            parameters={"rate": 1_000, "seconds": seconds, "body_bytes": _SMALL_BYTES},
        ),
        Figure("latency, p99", p99, "s", how, better="less", must=0.6, aim=0.3),
    ]


def _queue_offset(message: Any) -> int:
    return int(dict(message.headers())[QUEUE_OFFSET])


@dataclass(frozen=True)
class _LoadTurn:
    """All processes under load, once. `cost_us`: the processor time of one transaction."""

    tx_s: float
    cost_us: float
    cores: dict[str, float]


def sustained(folder: Path, broker: Broker, rounds: int) -> list[Figure]:
    """Let all processes run with the SDK's consumer, and with a publisher and a consumer of Kafka.

    A round is the SDK, Kafka, Kafka, the SDK: a machine that becomes faster or slower meanwhile
    favours neither.
    """
    bench = Workbench(SMALL, folder, broker, lambda text: print(f"  {text}", flush=True))
    rates: list[float] = []
    costs: list[float] = []
    details = {}

    for number in range(1, rounds + 1):
        turns: dict[bool, list[_LoadTurn]] = {False: [], True: []}
        for consumes_kafka in (False, True, True, False):
            nth = len(turns[consumes_kafka]) + 1
            name = f"round {number}, turn {nth} of {'Kafka' if consumes_kafka else 'the SDK'}"
            # Each turn is another lake, which a destination of the one before would refuse.
            destination = f"{number}-{nth}-{{topic}}" if consumes_kafka else None
            turn = _load_turn(bench, destination)

            turns[consumes_kafka].append(turn)
            details[name] = {
                "tx_s": round(turn.tx_s),
                "processor_us_a_transaction": round(turn.cost_us, 1),
                "cores": turn.cores,
            }
            bench.say(f"{name}: {turn.tx_s:,.0f} tx/s, {turn.cost_us:.1f} us each")

        rates.append(_ratio(turns, lambda turn: turn.tx_s))
        costs.append(_ratio(turns, lambda turn: turn.cost_us))
        bench.say(f"round {number}: rate {rates[-1]:.3f}, processor time {costs[-1]:.3f}")

    parameters = {"seconds": SMALL.sustained_s, "in_flight": SMALL.in_flight}
    return [
        Figure(
            "sustained, Kafka's consumer / the SDK's",
            statistics.median(rates),
            "ratio",
            "median over rounds of: transactions a second with a publisher and a consumer of Kafka "
            "/ those with the SDK's consumer in their place; in each round two turns of either, "
            "in turns",
            must=0.85,
            aim=1,
            samples=[round(ratio, 3) for ratio in rates],
            details=details,
            parameters=parameters,
        ),
        Figure(
            "processor time, Kafka's consumer / the SDK's",
            statistics.median(costs),
            "ratio",
            "median over the same rounds of: processor time of all processes for a transaction",
            better="less",
            samples=[round(ratio, 3) for ratio in costs],
            parameters=parameters,
        ),
    ]


def _load_turn(bench: Workbench, destination: str | None) -> _LoadTurn:
    """Let all processes run, with a publisher if it has a destination."""
    run = run_load(
        bench,
        "sustained",
        SMALL.sustained_s,
        ["--in-flight", str(SMALL.in_flight), *UNDER_LOAD],
        consumes_kafka=destination is not None,
        publish={} if destination is None else {"bench": {"destination": destination}},
    )
    rate, _ = sustained_rate(run)
    bench.forget(run.job.lake)
    return _LoadTurn(rate, sum(run.processor.values()) / rate * 1e6, run.processor)


def _ratio(turns: dict[bool, list[_LoadTurn]], value: Callable[[_LoadTurn], float]) -> float:
    """Return what Kafka's consumer has, as a mean of its turns, over what the SDK's has."""
    kafka, sdk = (statistics.fmean(map(value, turns[way])) for way in (True, False))
    return kafka / sdk


def measure(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure what was asked for, and print each figure. Input: a folder for all data."""
    place, date = machine.machine(), dt.datetime.now(dt.timezone.utc)
    parts: dict[str, Callable[[Broker], list[Figure]]] = {
        f"drain, {size} B": partial(drain, folder, messages=asked.messages, size=int(size))
        for size in filter(None, asked.sizes.split(","))
    }
    if asked.latency_s:
        parts["latency"] = partial(latency, folder, seconds=asked.latency_s)
    if asked.rounds:
        parts["sustained"] = partial(sustained, folder, rounds=asked.rounds)

    figures: list[Figure] = []
    seconds: dict[str, float] = {}
    load: dict[str, float] = {}
    with Broker(folder / "broker") as broker:
        for name, part in parts.items():
            began = time.monotonic()
            for figure in part(broker):
                figures.append(figure)
                value = number_text(figure.value)
                print(f"{figure.name}: {value} {figure.unit}, {figure.verdict}", flush=True)
            seconds[name] = time.monotonic() - began
            load[name] = os.getloadavg()[0]

    return Report(
        "publishing",
        date.isoformat(timespec="seconds"),
        machine.commit(),
        place,
        machine.versions(),
        {name: value for name, value in vars(asked).items() if name != "report"},
        seconds,
        load,
        figures,
        {},
    )


def main() -> None:
    """Measure, print a line a figure, and write the report that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sizes", default="256,2048", help="of bodies, bytes; of one drain each")
    parser.add_argument("--latency-s", type=int, default=120, help="0: no latency")
    parser.add_argument("--rounds", type=int, default=3, help="of all processes together; 0: none")
    parser.add_argument("--report", type=Path, help="a folder for the report")
    asked = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="bench-publishing-") as name:
        found = measure(asked, Path(name))
    if asked.report is not None:
        write(found, asked.report, Path("build") / "benchmarks" / "publishing")


if __name__ == "__main__":
    main()
