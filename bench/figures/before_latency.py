"""How long after it is sent a message could be read with an earlier commit's job."""

from __future__ import annotations

import statistics

from bench.figure import Figure, percentile, summary
from bench.figures.latency import Latencies, latencies
from bench.figures.sustained import SMALL
from bench.job_process import BenchError
from bench.workbench import Workbench

_ROUNDS_MAX = 2  # each lasts twice as long as the latency figure


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between the job before and this one, with the same load."""
    if bench.before is None:
        raise BenchError("name the commit to compare with: --before")
    rate, rounds = bench.size.rate, min(_ROUNDS_MAX, bench.size.body_rounds)
    found: dict[str, list[Latencies]] = {"before": [], "after": []}
    for _ in range(rounds):
        for when, checkout in (("before", bench.before.folder), ("after", None)):
            found[when].append(latencies(bench, rate, SMALL[1], checkout=checkout))
    details = {
        when: [{"readable_s": summary(one.seconds()), "cores": one.run.processor} for one in runs]
        for when, runs in found.items()
    }
    figures = []
    for per_cent in (50, 99):
        spans = {when: [percentile(one.seconds(), per_cent) for one in runs]
                 for when, runs in found.items()}  # fmt: skip
        samples = [b / a for a, b in zip(spans["before"], spans["after"], strict=True)]
        figures.append(Figure(
            name=f"latency, p{per_cent}, after / before",
            value=statistics.median(samples),
            unit="ratio",
            how=f"p{per_cent} of the latency at {rate} tx/s with the SDK's defaults, now / before; "
            "in turn, the median of the rounds",
            better="less",
            must=1.0,
            aim=0.6,
            samples=[round(ratio, 3) for ratio in samples],
            details=details if per_cent == 50 else {},
            parameters={"before": bench.before.commit, "rate": rate, "rounds": rounds,
                        "seconds": bench.size.latency_s, "warm_up_s": bench.size.warm_up_s},
        ))  # fmt: skip
    return figures
