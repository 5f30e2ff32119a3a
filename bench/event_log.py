"""What Spark's jobs cost, from its event log: by what they were for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class _Cost:
    """Units: ms, of all tasks together; `wall` from a job's begin to its end."""

    jobs: int = 0
    wall: int = 0
    tasks: int = 0
    run: int = 0
    cpu: int = 0
    gc: int = 0
    read: int = 0  # records


def summarize(logs: Iterable[Path]) -> str:
    """Return a table, the dearest first. Input: event logs, uncompressed."""
    costs: dict[str, _Cost] = defaultdict(_Cost)
    for log in logs:
        _add(log, costs)
    lines = ["  jobs   wall ms  tasks    run ms    cpu ms     gc ms    records   what"]
    for what, cost in sorted(costs.items(), key=lambda item: -item[1].wall):
        lines.append(
            f"{cost.jobs:6d} {cost.wall:9d} {cost.tasks:6d} {cost.run:9d} {cost.cpu:9d} "
            f"{cost.gc:9d} {cost.read:10d}   {what}"
        )
    return "\n".join(lines) + "\n"


def _add(log: Path, costs: dict[str, _Cost]) -> None:
    began: dict[int, tuple[int, str]] = {}
    of_stage: dict[int, str] = {}

    with log.open(encoding="utf-8") as lines:
        for line in lines:
            event: dict[str, Any] = json.loads(line)
            kind = event["Event"]

            if kind == "SparkListenerJobStart":
                stages = event["Stage Infos"]
                what = stages[-1]["Stage Name"] if stages else "no stage"
                began[event["Job ID"]] = (event["Submission Time"], what)
                of_stage |= {stage["Stage ID"]: what for stage in stages}
            elif kind == "SparkListenerJobEnd":
                at, what = began.pop(event["Job ID"])
                costs[what].jobs += 1
                costs[what].wall += event["Completion Time"] - at
            elif kind == "SparkListenerTaskEnd" and event.get("Task Metrics"):
                cost = costs[of_stage[event["Stage ID"]]]
                metrics = event["Task Metrics"]

                cost.tasks += 1
                cost.run += metrics["Executor Run Time"]
                cost.cpu += metrics["Executor CPU Time"] // 1_000_000
                cost.gc += metrics["JVM GC Time"]
                cost.read += metrics["Input Metrics"]["Records Read"]
