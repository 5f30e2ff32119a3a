"""How soon a consumer that waits gets a message, and what waiting costs it.

    python -m bench.consumer_wait [--messages 200] [--idle-s 60]

A consumer of the SDK, in a process of its own, waits in `poll` on a lake on the local disk.
Messages are committed at times that its own waits know nothing of.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import psutil

from bench.message_lake import QUEUES, TOPIC_NAME, MessageLake
from txlake import Consumer

_PAUSE_S = (0.1, 2.0)
_WARM_UP = 20
_POLL_S = 1.0


def consume(lake_path: str) -> None:
    """Print each message's queue offset and when it came, in ns, until the process is ended."""
    with Consumer(lake_path, "waiting", [TOPIC_NAME]) as consumer:
        print("started", flush=True)
        while True:
            for message in consumer.poll(_POLL_S):
                if message.queue_id == 0:
                    print(message.queue_offset, time.time_ns(), flush=True)


def measure(folder: Path, messages: int, idle_s: int) -> str:
    """Returns what was measured, in one line."""
    lake = MessageLake(folder / "lake", 256)
    lake.commit(QUEUES)
    pause = random.Random(1)

    command = [sys.executable, "-m", "bench.consumer_wait", "--lake", str(folder / "lake")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            _next_line(process.stdout)
            _next_line(process.stdout)  # the first message

            waits = []
            for _ in range(_WARM_UP + messages):
                time.sleep(pause.uniform(*_PAUSE_S))
                lake.commit(QUEUES)
                _, seen_ns = _next_line(process.stdout).split()
                waits.append((int(seen_ns) - _committed_ns(folder / "lake")) / 1e6)

            cpu_s = _cpu_s(process.pid)
            time.sleep(idle_s)
            idle = (_cpu_s(process.pid) - cpu_s) / idle_s
        finally:
            process.terminate()

    waits = sorted(waits[_WARM_UP:])
    return (
        f"{messages} messages, from the commit to the consumer: p50 {statistics.median(waits):.0f} "
        f"ms, p99 {waits[int(messages * 0.99) - 1]:.0f} ms, longest {waits[-1]:.0f} ms; idle "
        f"{idle:.4f} cores in {idle_s} s"
    )


def _next_line(output: IO[str]) -> str:
    """Returns what the consumer says next. Errors: RuntimeError if it has ended."""
    line = output.readline()
    if not line:
        raise RuntimeError("the consumer has ended; its error is above")
    return line


def _committed_ns(lake: Path) -> int:
    """Returns when the newest epoch was committed: its file in the log of `epochs`."""
    return max(path.stat().st_mtime_ns for path in lake.glob("epochs/_delta_log/*.json"))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--idle-s", type=int, default=60)
    parser.add_argument("--lake", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.lake:
        consume(options.lake)

    with tempfile.TemporaryDirectory(prefix="bench-consumer-wait-") as folder:
        print(measure(Path(folder), options.messages, options.idle_s), flush=True)


if __name__ == "__main__":
    main()
