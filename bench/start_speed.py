"""Whether a start costs more, the more transactions a lake has behind it.

    python -m bench.start_speed FOLDER --behind 50000000 --young 50000

Two synthetic lakes (`bench/aged_lake.py`), both with retention: a young one, which has deleted
nothing yet, and one with many more transactions behind it, of which it keeps as many as the young
one has and has deleted the rest. Then, in turns, what a start does without a JVM: where the epochs
stand, whether the lake is whole, the state. FOLDER keeps the lakes: a second run only reads them.

Prints JSON: what each lake holds, the medians of time and processor time, and for both the old
lake's over the young one's. Exit code 1 if a ratio is above 1.2.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench import synthetic_lake
from bench.aged_lake import Age, make
from bench.restore_speed import Start, start
from storage.lake.epochs import read_progress
from storage.lake.lake import Lake
from storage.schemas import TABLES

MUST = 1.2
_WARM_UP = 2  # rounds that do not count


def measure(folder: Path, ages: dict[str, Age], rounds: int) -> dict[str, Any]:
    """Make the lakes that are missing, and start on each of them in turns."""
    paths = {name: str(folder / f"{name}-{age.newest}-{age.kept}") for name, age in ages.items()}
    for name, age in ages.items():
        if not Path(paths[name]).exists():
            making = f"{paths[name]}.making"
            make(making, age)
            Path(making).rename(paths[name])
    starts: dict[str, list[Start]] = {name: [] for name in ages}
    for number in range(rounds + _WARM_UP):
        for name in list(ages)[:: 1 if number % 2 else -1]:
            gc.collect()
            found = start(paths[name])
            if number >= _WARM_UP:
                starts[name].append(found)
    lakes = {name: {**_held(paths[name]), **_times(starts[name])} for name in ages}
    young, old = lakes.values()
    return {
        "lakes": lakes,
        "ratios": {
            what: round(old[what] / young[what], 3) for what in ("start_ms", "processor_ms")
        },
    }


def _held(path: str) -> dict[str, Any]:
    """Describe what a lake has behind it, and what is there."""
    lake = Lake(path)
    last = read_progress(lake).last
    assert last is not None
    tables = (*TABLES, "topics/1")
    files = [lake.table(table).files() for table in tables]
    logs = (Path(lake.table_path(table)) / "_delta_log" for table in tables)
    return {
        "transactions": last.epoch * synthetic_lake.EPOCH_ROWS,
        "epochs": last.epoch,
        "version_of_half": lake.handle("half").version(),
        "halves_there": sum(lake.handle("half").get_add_actions()["num_records"].to_pylist()),
        "data_files": sum(one.num_rows for one in files),
        "log_files": sum(len(list(log.iterdir())) for log in logs),
    }


def _times(starts: Sequence[Start]) -> dict[str, float]:
    def median_ms(what: str) -> float:
        seconds: list[float] = [getattr(one, what) for one in starts]
        return round(statistics.median(seconds) * 1e3, 1)

    return {
        "pending": starts[-1].state.halves.num_rows,
        "start_ms": median_ms("seconds"),
        "epochs_ms": median_ms("epochs_s"),
        "whole_ms": median_ms("whole_s"),
        "state_ms": median_ms("state_s"),
        "processor_ms": median_ms("processor_s"),
    }


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--behind", default=50_000_000, show_default=True, help="Of the old lake.")
@click.option("--young", default=50_000, show_default=True, help="Of the young lake.")
@click.option("--epoch", default=40, show_default=True, help="Transactions of an epoch.")
@click.option("--rounds", default=15, show_default=True)
def main(folder: Path, behind: int, young: int, epoch: int, rounds: int) -> None:
    """Measure, print, judge."""
    synthetic_lake.EPOCH_ROWS = epoch
    kept = young // epoch
    ages = {"young": Age(kept, kept), "old": Age(behind // epoch, kept)}
    folder.mkdir(parents=True, exist_ok=True)
    found = measure(folder, ages, rounds)
    print(json.dumps(found, indent=1))
    sys.exit(int(any(ratio > MUST for ratio in found["ratios"].values())))


if __name__ == "__main__":
    main()
