"""How long others wait while one producer group floods, over the same without it."""

from __future__ import annotations

import statistics

from bench.figure import Figure, percentile, summary
from bench.figures.latency import Latencies, latencies
from bench.figures.sustained import SMALL
from bench.load_flood import FLOOD_GROUP, TOPICS
from bench.workbench import Workbench

_ROUNDS_MAX = 2


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between the load alone and the same load beside a group that floods."""
    rate, rounds = bench.size.rate, min(_ROUNDS_MAX, bench.size.body_rounds)
    found: dict[str, list[Latencies]] = {"alone": [], "beside": []}
    for _ in range(rounds):
        found["alone"].append(latencies(bench, rate, SMALL[1]))
        found["beside"].append(latencies(bench, rate, SMALL[1], flood_rate=rate))
    details = {
        when: [{"readable_s": summary(one.seconds()), "cores": one.run.processor} for one in runs]
        for when, runs in found.items()
    }
    figures = []
    for per_cent in (50, 99):
        spans = {when: [percentile(one.seconds(), per_cent) for one in runs]
                 for when, runs in found.items()}  # fmt: skip
        samples = [b / a for a, b in zip(spans["alone"], spans["beside"], strict=True)]
        figures.append(Figure(
            name=f"flood, p{per_cent}",
            value=statistics.median(samples),
            unit="ratio",
            how=f"p{per_cent} of the latency at {rate} tx/s while another group writes as many "
            "records a second that nobody ends, sets that never become complete, commits to "
            f"{TOPICS} topics, and operations that name nothing / the same without it; in turn",
            better="less",
            must=2.0,
            samples=[round(ratio, 3) for ratio in samples],
            details=details if per_cent == 50 else {},
            parameters={"rate": rate, "rounds": rounds, "flood_group": FLOOD_GROUP,
                        "seconds": bench.size.latency_s, "warm_up_s": bench.size.warm_up_s},
        ))  # fmt: skip
    return figures
