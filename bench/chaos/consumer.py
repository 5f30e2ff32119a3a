"""The consumer of the chaos run: writes down what comes, then commits, until it is killed.

Now and then it kills itself between the two: what it wrote down then comes again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
from pathlib import Path

from bench.chaos.journal import Seen
from bench.chaos.names import CONSUMED
from pipelines.settings import load
from storage.files.location import LakeLocation
from txlake import Consumer, GroupBusyError, LakeError, StaleGenerationError

GROUP = "chaos"
SESSION_TIMEOUT_MS = 1_500
_DEATHS = 0.02  # of the polls that gave something
# Reasons to begin anew: the lake is not made yet, or the queues went to another one meanwhile.
_TRY_AGAIN = (LakeError, GroupBusyError, StaleGenerationError)


def consume(lake: LakeLocation, seen: Seen, rng: random.Random, ended: threading.Event) -> None:
    """Consumes until `ended`, or until the queues are lost."""
    # One that was killed owns the queues for one session more.
    waiting_ms = 3 * SESSION_TIMEOUT_MS

    with Consumer(
        lake.path,
        GROUP,
        CONSUMED,
        storage_options=lake.options,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        wait_for_owner_ms=waiting_ms,
    ) as consumer:
        while not ended.is_set():
            messages = consumer.poll(0.5, max_records=100)
            if messages:
                seen.add(messages)
                if rng.random() < _DEATHS:
                    os.kill(os.getpid(), signal.SIGKILL)

                consumer.commit()


def main() -> None:
    """Consumes until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--conf", required=True, help="settings that say where the lake is")
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--name", required=True, help="different for each start")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    seen = Seen(options.seen)
    lake = load(options.conf).lake.location()
    rng = random.Random(f"{options.seed}/{options.name}")

    while not ended.is_set():
        try:
            consume(lake, seen, rng, ended)
        except _TRY_AGAIN as error:
            print(error, flush=True)
            ended.wait(0.3)


if __name__ == "__main__":
    main()
