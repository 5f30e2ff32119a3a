"""What `txlake publish` takes: drains of a lake that is there, latency beside commits.

    python -m bench.publishing [--messages 1000000] [--sizes 256,2048] [--latency-s 30] [--rounds 0]

The lake is written as a job lays it out, without Kafka and Spark; the broker is a real one of this
machine, the publisher a process of its own. With `--rounds` all processes run together, in turns:
once the SDK's consumer reads, once a publisher and a consumer of Kafka stand in its place.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.figures.sustained import UNDER_LOAD, sustained_rate
from bench.load import run_load
from bench.message_lake import QUEUES, TOPIC_NAME, MessageLake
from bench.sizes import SMALL
from bench.workbench import Workbench
from pipelines.local_broker.broker import Broker
from txlake.protocol import QUEUE_OFFSET

EPOCH_MESSAGES = 20_000


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


def drain(folder: Path, broker: Broker, messages: int, size: int) -> str:
    """Returns what a drain took."""
    name = f"drain{size}"
    lake = MessageLake(folder / name, size)
    while lake.next_offset * QUEUES < messages:
        lake.commit(EPOCH_MESSAGES)

    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "b", "log_level": 0}
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

    time.sleep(2.0)
    idle = run.cpu_s()
    time.sleep(10.0)
    idle = (run.cpu_s() - idle) / 10

    run.end()

    return (
        f"{size} B: {messages / took:,.0f} messages/s, {used / messages * 1e6:.1f} us of processor "
        f"a message, {run.memory_mb:.0f} MB, idle {idle:.3f} cores"
    )


def latency(folder: Path, broker: Broker, seconds: int) -> str:
    """Returns how long after an epoch's commit a consumer sees its messages, at 1,000 a second."""
    name = "latency"
    lake = MessageLake(folder / name, 256)
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
    waits = sorted(seen[first] - at for first, at in committed.items() if first in seen)[1:]
    steady = waits[: int(len(waits) * 0.99) or 1]
    return (
        f"latency from the commit: p50 {statistics.median(waits):.3f} s, p99 {steady[-1]:.3f} s, "
        f"most {waits[-1]:.3f} s, of {len(waits)} epochs"
    )


def _queue_offset(message: Any) -> int:
    return int(dict(message.headers())[QUEUE_OFFSET])


def sustained(folder: Path, broker: Broker, rounds: int) -> str:
    """Returns what all processes sustain with a consumer of Kafka, and with the SDK's, in turns."""
    bench = Workbench(SMALL, folder, broker, lambda text: print(f"  {text}", flush=True))
    ratios = []

    for number in range(1, rounds + 1):
        rates = {}
        for consumes_kafka in (False, True):
            run = run_load(
                bench,
                "sustained",
                SMALL.sustained_s,
                ["--in-flight", str(SMALL.in_flight), *UNDER_LOAD],
                consumes_kafka=consumes_kafka,
                publish={"bench": {}} if consumes_kafka else {},
            )
            rates[consumes_kafka], _ = sustained_rate(run)
            bench.forget(run.job.lake)

            way = "Kafka" if consumes_kafka else "the SDK"
            bench.say(f"round {number}, {way}: {rates[consumes_kafka]:,.0f} tx/s, {run.processor}")
        ratios.append(rates[True] / rates[False])

    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"sustained, a publisher and Kafka's consumer / the SDK's: {each}"


def main() -> None:
    """Measure, and print a line a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sizes", default="256,2048")
    parser.add_argument("--latency-s", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=0, help="of all processes together")
    asked = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="bench-publishing-") as name:
        folder = Path(name)
        with Broker(folder / "broker") as broker:
            for size in filter(None, asked.sizes.split(",")):
                print(drain(folder, broker, asked.messages, int(size)), flush=True)
            if asked.latency_s:
                print(latency(folder, broker, asked.latency_s), flush=True)
            if asked.rounds:
                print(sustained(folder, broker, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
