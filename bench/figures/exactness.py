"""What exactly-once costs: the drain against a plain streaming append of the same half topic."""

from __future__ import annotations

import json
import shutil
import statistics

from bench.figure import Figure
from bench.figures.drain import Drained, drained
from bench.job_process import BenchError
from bench.workbench import Workbench
from tests.support.processes import Process

_TIMEOUT_S = 1_800.0


def measure(bench: Workbench) -> list[Figure]:
    """Take turns: the job, the plain append, on the same records."""
    count = bench.size.drain_transactions
    topics, written = bench.waiting(count)
    # The drain of this run, on the same records, is the first.
    exact: list[Drained] = [bench.measured[k] for k in [("drain", count)] if k in bench.measured]
    plain: list[dict[str, float]] = []
    for number in range(bench.size.exactness_rounds):
        if len(exact) <= number:
            exact.append(drained(bench, "exact", topics, written))
            bench.forget("exact")
        plain.append(plain_append(bench, topics, written.halves))
    pairs = list(zip(exact, plain, strict=True))
    ratios = [e.seconds / p["seconds"] for e, p in pairs]
    return [Figure(
        name="cost of exactness",
        value=statistics.median(ratios),
        unit="ratio",
        how="time of the drain / time of a plain Spark stream that appends the same halves, as "
        "decoded columns, to one Delta table; in turn, starts not counted",
        better="less",
        must=2.7,
        aim=2.0,
        samples=[round(ratio, 3) for ratio in ratios],
        details={
            "by_processor_time": [round(e.processor_s / p["processor_s"], 3) for e, p in pairs],
            "job_s": [round(e.seconds, 2) for e in exact],
            "plain_append_s": [round(p["seconds"], 2) for p in plain],
            "plain_append_halves_s": [round(count / p["seconds"]) for p in plain],
        },
        parameters={"transactions": count, "rounds": bench.size.exactness_rounds},
    )]  # fmt: skip


def plain_append(bench: Workbench, topics: str, halves: int) -> dict[str, float]:
    """Append a half topic to a new table. Output: what `bench.plain_append` prints."""
    bench.say(f"a plain stream appends {halves} halves")
    into = bench.folder / "plain"
    shutil.rmtree(into, ignore_errors=True)
    job = bench.job("plain", topics)
    log = bench.folder / "jobs" / "plain-append.log"
    log.unlink(missing_ok=True)
    arguments = ["--conf", str(job.conf), "--into", str(into)]
    process = Process(
        "bench.plain_append", arguments, log, bench.folder / "temp", is_short_lived=False
    )
    try:
        code = process.wait(_TIMEOUT_S)
    finally:
        process.end()
    if code != 0:
        raise BenchError(f"the plain append ended with code {code}: {process.last_line()}")
    lines = log.read_text("utf-8", "replace").splitlines()
    found: dict[str, float] = json.loads(
        next(line for line in reversed(lines) if line.startswith("{"))
    )
    shutil.rmtree(into, ignore_errors=True)
    if found["records"] != halves:
        raise BenchError(f"the plain append has {found['records']} of {halves} halves")
    return found
