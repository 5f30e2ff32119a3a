"""How many transactions a second a replay does, without Kafka and Spark.

Run: python -m bench.replay_speed FOLDER TRANSACTIONS EPOCH_TRANSACTIONS

Makes records of that many transactions (256 random bytes a body, an operation each, one in forty
delayed, one in a thousand never ended) in epochs of a size, lets a rebuild decide them, and then
measures on that lake: verify, rebuild of the recorded epochs, rebuild in one batch.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import synthetic_lake
from pipelines.replay import rebuild, verify


def main(folder: str, transactions: int, epoch_transactions: int) -> None:
    """Make the lake, replay it in each way, and print one line for each."""
    records, lake = f"{folder}/records", f"{folder}/lake"
    if not Path(lake).exists():
        synthetic_lake.EPOCH_ROWS = epoch_transactions
        synthetic_lake.make(records, transactions, transactions // epoch_transactions)
        rebuild(records, lake)

    for what, run in (
        ("verify", lambda: verify(lake).is_equal),
        ("into", lambda: rebuild(lake, f"{folder}/into").epochs > 0),
        ("one batch", lambda: rebuild(lake, f"{folder}/one", one_batch=True).epochs > 0),
    ):
        _measure(what, transactions, run)

    for name in ("into", "one"):
        shutil.rmtree(f"{folder}/{name}")


def _measure(what: str, transactions: int, run: Callable[[], bool]) -> None:
    before = os.times()
    deciding = time.thread_time()
    started = time.monotonic()

    assert run(), what
    seconds = time.monotonic() - started
    after = os.times()
    deciding = time.thread_time() - deciding

    cpu = after.user + after.system - before.user - before.system
    # Two free cores are busy for half of the CPU, and not less than the one thread that decides.
    bound = transactions / max(cpu / 2, deciding)

    print(
        f"{what}: {transactions:,} transactions in {seconds:.1f} s = "
        f"{transactions / seconds:,.0f}/s at load {os.getloadavg()[0]:.1f}; "
        f"{1e6 * cpu / transactions:.1f} us of CPU each, {1e6 * deciding / transactions:.1f} of "
        f"them in the thread that decides: two free cores could do {bound:,.0f}/s; "
        f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB so far",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
