"""Measure the operator's commands on large lakes: each a process of its own, imports included.

Run: python -m bench.explain_speed FOLDER [TRANSACTIONS]

Makes two lakes in FOLDER where they are missing: one compacted into 100 files a table, one as the
job leaves it, a file an epoch. Prints the shortest and the median of some runs, and the processor
time of one, which tells more on a busy machine.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.synthetic_lake import EPOCH_ROWS, half_place, make, transaction_id

RUNS = 3


def commands(transactions: int) -> dict[str, list[str]]:
    """Return the commands to measure, by what they do."""
    middle = transactions // 2 + 11
    queue_id, queue_offset = half_place(middle)
    silent_queue, silent_offset = half_place(7)
    return {
        "explain an id, decided": ["tx", "explain", transaction_id(middle)],
        "explain a coordinate, decided": ["tx", "explain", f"{queue_id}-{queue_offset}"],
        "explain the oldest pending half": ["tx", "explain", f"{silent_queue}-{silent_offset}"],
        "explain an unknown id": ["tx", "explain", "f" * 32],
        "explain --keys": ["tx", "explain", "--keys", f"order-{middle}"],
        "status": ["status"],
        "tx list --pending": ["tx", "list", "--pending"],
        "groups": ["groups"],
        "dead list": ["dead", "list"],
        "schedule list": ["schedule", "list"],
    }


def processor_s() -> float:
    """Return the processor time of all processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(words: list[str], lake: Path) -> list[float]:
    """Run a command some times. Units: s."""
    program = str(Path(sys.executable).with_name("txlake"))
    spans = []
    for _ in range(RUNS):
        began = time.perf_counter()
        done = subprocess.run([program, *words, "--lake", str(lake)], capture_output=True)
        spans.append(time.perf_counter() - began)
        assert done.returncode in (0, 1), done.stderr
    return spans


def main(folder: Path, transactions: int) -> None:
    """Measure, and print a table."""
    epochs = transactions // EPOCH_ROWS
    for files in (100, epochs):
        lake = folder / f"lake-{transactions}-{files}"
        if not lake.exists():
            make(str(lake), transactions, files)
        for what, words in commands(transactions).items():
            before = processor_s()
            spans = measure(words, lake)
            used = (processor_s() - before) / RUNS
            print(
                f"{files:6d} files  {what:34s} best {min(spans):.2f} s, median "
                f"{statistics.median(spans):.2f} s, processor {used:.2f} s"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
