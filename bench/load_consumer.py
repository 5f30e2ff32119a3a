"""A consumer of the benchmark, by the SDK: read everything, commit, measure how old messages are.

Its count does not have those messages that only a check ended (KEYS `late`): the producer counts
what it committed, and compares.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import threading
import time
from pathlib import Path

from bench.collector import look_rarely
from bench.counter_file import CounterFile
from bench.load_producer import LATE
from bench.sample_data import TOPIC
from pipelines.settings import load
from storage.files.location import LakeLocation
from txlake import Consumer, LakeError

GROUP = "bench"
_COMMIT_S = 1.0
RECORDS_MAX = 5_000
EVERY = 16  # of so many messages one is a sample
_TRY_AGAIN_S = 0.2


def consume(
    lake: LakeLocation, consumed: CounterFile, ended: threading.Event
) -> list[tuple[float, float]]:
    """Consume until `ended`. Output: samples: when a message came (s), how old it was then (ms)."""
    samples: list[tuple[float, float]] = []
    count = 0
    commit_at = 0.0

    with Consumer(lake.path, GROUP, [TOPIC], storage_options=lake.options) as consumer:
        while not ended.is_set():
            messages = consumer.poll(0.2, max_records=RECORDS_MAX)
            now = time.time()
            count += sum(message.keys != LATE for message in messages)
            consumed.write(count)

            for message in messages[::EVERY]:
                if message.born_at is not None and message.keys != LATE:
                    samples.append((now, round((now - message.born_at.timestamp()) * 1000)))

            if messages and time.monotonic() > commit_at:
                consumer.commit()
                commit_at = time.monotonic() + _COMMIT_S
    return samples


def begin(does: str) -> tuple[argparse.Namespace, threading.Event]:
    """Read the options of a consumer of the benchmark. Output: they, and what SIGTERM sets."""
    parser = argparse.ArgumentParser(description=does.split("\n")[0])
    parser.add_argument("--conf", required=True, help="the job's settings")
    parser.add_argument("--consumed", type=Path, required=True, help="file for the count")
    parser.add_argument("--samples", type=Path, required=True)
    options = parser.parse_args()

    ended = threading.Event()
    faulthandler.register(signal.SIGUSR1)
    look_rarely()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    return options, ended


def main() -> None:
    """Consume until SIGTERM, then write the samples."""
    options, ended = begin(__doc__ or "")
    consumed = CounterFile(options.consumed, 1)
    lake = load(options.conf).lake.location()

    while not ended.is_set():
        try:
            samples = consume(lake, consumed, ended)
        except LakeError as error:  # the job has not made the lake yet
            print(error, flush=True)
            ended.wait(_TRY_AGAIN_S)
        else:
            options.samples.write_text(json.dumps(samples), "utf-8")


if __name__ == "__main__":
    main()
