"""What exactly-once costs: the drain against a plain streaming append of the same half topic."""

from __future__ import annotations

import json
import shutil
import statistics

from bench.chaos_processes import Process
from bench.figure import Figure
from bench.figures.drain import drained, span_s
from bench.job_process import BenchError
from bench.workbench import Workbench

_TIMEOUT_S = 1_800.0


def measure(bench: Workbench) -> list[Figure]:
    """Take turns: the job, the plain append, on the same records."""
    count = bench.size.drain_transactions
    topics, written = bench.waiting(count)
    exact, plain = [], []
    # The drain of this run, on the same records, is the first.
    if bench.measured.get("drain transactions") == count:
        exact.append(bench.measured["drain seconds"])
    for number in range(bench.size.exactness_rounds):
        if len(exact) <= number:
            exact.append(span_s(drained(bench, "exact", topics, written)))
            bench.forget("exact")
        plain.append(plain_append_s(bench, topics, written.halves))
    ratios = [e / p for e, p in zip(exact, plain, strict=True)]
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
            "job_s": [round(s, 2) for s in exact],
            "plain_append_s": [round(s, 2) for s in plain],
            "plain_append_halves_s": round(written.halves / statistics.median(plain)),
        },
        parameters={"transactions": count, "rounds": bench.size.exactness_rounds},
    )]  # fmt: skip


def plain_append_s(bench: Workbench, topics: str, halves: int) -> float:
    """Append a half topic to a new table. Output: seconds, without the start of the process."""
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
    found = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    shutil.rmtree(into, ignore_errors=True)
    if found["records"] != halves:
        raise BenchError(f"the plain append has {found['records']} of {halves} halves")
    return float(found["seconds"])
