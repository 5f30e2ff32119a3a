"""How long a job needs to start on an existing lake, and what it costs when nothing comes."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from bench.epoch_times import epoch_times
from bench.figure import Figure
from bench.figures.drain import drained
from bench.sample_data import Mix
from bench.usage import processor_s
from bench.workbench import Workbench

_LAKE = "start"
_TIMEOUT_S = 180.0
_WAITING = 1_000  # records
_SETTLE_S = 10.0
# A transaction is two records, its half and its end.
_MIX = Mix(unanswered=0.0, rolled_back=0.0, ends_per_operation=1)


def measure(bench: Workbench) -> list[Figure]:
    """Start a job some times on a lake with a history; then watch the last one do nothing."""
    size = bench.size
    writer = bench.writer(_LAKE)
    written = writer.transactions(min(size.drain_transactions, 50_000), Mix(unanswered=0.0))
    drained(bench, _LAKE, _LAKE, written)

    spans: list[float] = []
    for number in range(size.start_rounds):
        waiting = writer.transactions(_WAITING // 2, _MIX)
        bench.say(f"the job starts on a lake with {waiting.records} records waiting")

        with bench.job(_LAKE) as job:
            job.wait_until_landed(waiting.records, _TIMEOUT_S)
            landing = [time for time in epoch_times(job.lake) if time.records]
            spans.append(landing[-1].ended_at - job.launched_at)
            if number == size.start_rounds - 1:
                processor, commits, merges = _idle(bench, job.group, Path(job.lake.path))

    return [
        Figure(
            name="start",
            value=statistics.median(spans),
            unit="s",
            how="from the launch of the process to the committed row of the records that wait; "
            "median",
            better="less",
            must=12.0,
            aim=8.0,
            samples=[round(span, 2) for span in spans],
            parameters={
                "records": _WAITING,
                "rounds": size.start_rounds,
                "transactions_in_the_lake": written.halves,
            },
        ),
        Figure(
            name="idle processor",
            value=processor,
            unit="cores",
            how="processor time of Python and JVM / time, without input",
            better="less",
            must=0.15,
            aim=0.05,
            parameters={"seconds": size.idle_s, "after_s": _SETTLE_S},
        ),
        Figure(
            name="idle commits",
            value=float(commits - merges),
            unit="commits",
            how="Delta commits that change what a table holds, without input; maintenance, which "
            "goes on for a while after the last epoch, only rewrites it",
            better="less",
            must=0.0,
            aim=0.0,
            details={"commits_of_maintenance": merges},
            parameters={"seconds": size.idle_s},
        ),
    ]


def _idle(bench: Workbench, group: int, lake: Path) -> tuple[float, int, int]:
    """Watch a job without input. Output: cores; Delta commits; those of maintenance."""
    bench.say(f"nothing comes for {bench.size.idle_s:.0f} s")
    time.sleep(min(_SETTLE_S, bench.size.idle_s))
    began = time.monotonic()
    used = processor_s(group)
    commits = _commits(lake)
    time.sleep(bench.size.idle_s)
    cores = (processor_s(group) - used) / (time.monotonic() - began)
    made = _commits(lake) - commits
    return round(cores, 4), len(made), sum(_only_rewrites(path) for path in made)


def _commits(lake: Path) -> set[Path]:
    return set(lake.glob("**/_delta_log/*.json"))


def _only_rewrites(log: Path) -> bool:
    """Return whether a commit leaves a table's rows as they were."""
    actions = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    files = [a[kind] for a in actions for kind in ("add", "remove") if kind in a]
    return not any(file["dataChange"] for file in files)
