"""A member of a consumer group, a process of its own: it writes down each message, then commits.

It ends at SIGTERM, by closing its consumer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txlake import Consumer, StaleGenerationError


def main(lake: str, group: str, topic: str, seen: str, session_timeout_ms: str) -> None:
    """Consumes until SIGTERM. A line of `seen`: the queue and the offset of a message."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    timeout_ms = int(session_timeout_ms)

    with (
        open(seen, "ab", buffering=0) as file,
        Consumer(lake, group, [topic], session_timeout_ms=timeout_ms) as consumer,
    ):
        print("ready", flush=True)
        while not stopped.is_set():
            for message in consumer.poll(0.2, max_records=10):
                file.write(f"{message.queue_id} {message.queue_offset}\n".encode())
            try:
                consumer.commit()
            except StaleGenerationError as error:
                print(error, flush=True)


@contextmanager
def member(
    lake: Path, group: str, topic: str, seen: Path, session_timeout_ms: int = 30_000
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a member; kills it at the end, if it is still there."""
    arguments = [str(lake), group, topic, str(seen), str(session_timeout_ms)]
    command = [sys.executable, "-m", "tests.support.group_member", *arguments]
    root = Path(__file__).parents[2]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def read_seen(*files: Path) -> list[tuple[int, int]]:
    """Returns what members have written down."""
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return [(int(queue_id), int(offset)) for queue_id, offset in map(str.split, lines)]


if __name__ == "__main__":
    main(*sys.argv[1:])
