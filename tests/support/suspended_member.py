"""A member of a consumer group that can suspend itself with a message in hand, before it commits.

A process of its own, by `poll` or by a listener of `run`. It ends at SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from txlake import ConsumedMessage, Consumer, StaleGenerationError

Mode = Literal["poll", "run"]
NEVER = 1_000_000  # beyond all offsets


def main(lake: str, mode: str, journal: str, session_timeout_ms: str, suspends_at: str) -> None:
    """Consumes. A line of the journal: the queue and the offset of a message."""
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    stopped = threading.Event()
    suspended = threading.Event()
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def take(messages: Sequence[ConsumedMessage]) -> None:
        for message in messages:
            os.write(file, f"{message.queue_id} {message.queue_offset}\n".encode())
            if message.queue_offset >= int(suspends_at) and not suspended.is_set():
                suspended.set()
                os.kill(os.getpid(), signal.SIGSTOP)

    with Consumer(lake, "points", ["orders"], session_timeout_ms=int(session_timeout_ms)) as member:

        def stop(*_: object) -> None:
            stopped.set()
            member.stop()

        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        if mode == "run":
            member.run(take, threads=2, commit_interval_ms=100)

        while not stopped.is_set():
            take(member.poll(0.2))
            try:
                member.commit()
            except StaleGenerationError as error:
                print(f"refused: {error}", flush=True)


@contextmanager
def suspended_member(
    lake: Path, mode: Mode, folder: Path, *, session_timeout_ms: int, suspends_at: int = NEVER
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a member; kills it at the end, if it is still there.

    Input: `folder`: gets its journal and what it says, `journal` and `said`; `suspends_at`: with
    the first message in hand that has this offset of any queue, or a later one.
    """
    folder.mkdir()
    arguments = [str(lake), mode, str(folder / "journal"), str(session_timeout_ms)]
    command = [sys.executable, "-m", "tests.support.suspended_member", *arguments, str(suspends_at)]
    root = Path(__file__).parents[2]

    with (
        open(folder / "said", "wb") as said,
        subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=root,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
