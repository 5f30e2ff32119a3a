"""The latency of one way over that of another, in turns."""

from __future__ import annotations

import statistics
from typing import Any

from bench.figure import Figure, percentile, summary
from bench.figures.latency import Latencies, latencies
from bench.figures.sustained import SMALL
from bench.workbench import Workbench

_ROUNDS_MAX = 2  # each lasts twice as long as the latency figure
Way = tuple[str, dict[str, Any]]  # its name, and how it is measured: as `latencies`


def ratios(
    bench: Workbench, name: str, how: str, ways: tuple[Way, Way], must: float,
    aim: float | None = None, **parameters: Any,
) -> list[Figure]:  # fmt: skip
    """Measure p50 and p99 of the second way over the first; the median of the rounds.

    Input: `name` and `how` of the figures, with `{per_cent}` and `{rate}` to fill in.
    """
    rate, rounds = bench.size.rate, min(_ROUNDS_MAX, bench.size.body_rounds)
    found: dict[str, list[Latencies]] = {way: [] for way, _ in ways}
    for _ in range(rounds):
        for way, options in ways:
            found[way].append(latencies(bench, rate, SMALL[1], **options))
    details = {
        way: [{"readable_s": summary(one.seconds()), "cores": one.run.processor} for one in runs]
        for way, runs in found.items()
    }
    figures = []
    for per_cent in (50, 99):
        first, second = ([percentile(one.seconds(), per_cent) for one in runs]
                         for runs in found.values())  # fmt: skip
        samples = [b / a for a, b in zip(first, second, strict=True)]
        figures.append(Figure(
            name=name.format(per_cent=per_cent),
            value=statistics.median(samples),
            unit="ratio",
            how=how.format(per_cent=per_cent, rate=rate) + "; in turn, the median of the rounds",
            better="less",
            must=must,
            aim=aim,
            samples=[round(ratio, 3) for ratio in samples],
            details=details if per_cent == 50 else {},
            parameters={"rate": rate, "rounds": rounds, "seconds": bench.size.latency_s,
                        "warm_up_s": bench.size.warm_up_s, **parameters},
        ))  # fmt: skip
    return figures
