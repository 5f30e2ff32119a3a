"""How long after it is sent a message can be read: at a quiet rate, at 70 % of the sustained."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figure import Figure, Plot, percentile, summary
from bench.figures import sustained
from bench.load import run_load
from bench.readable import latencies_s
from bench.sample_data import TOPIC
from bench.workbench import Workbench

_HOW = (
    "time of the Delta commit of the topic table - BORN_TIMESTAMP, which the SDK takes when the "
    "message is sent; messages that only a check ended are left out"
)
QUIET, BUSY = "latency at 1,000 tx/s", "latency at 70 % of sustained"
_BUSY_SHARE = 0.7
# p50 and p99, must and aim. Units: s.
_WANTED = {QUIET: ((1.2, 0.7), (2.5, 1.5)), BUSY: ((2.5, 1.5), (6.0, 3.0))}


def measure(bench: Workbench) -> list[Figure]:
    """Measure both rates; what is sustained is measured first where it was not."""
    if "sustained" not in bench.measured:
        sustained.measure(bench)
    busy = _BUSY_SHARE * bench.measured["sustained"]
    return [
        *_at_rate(bench, QUIET, bench.size.rate, ()),
        *_at_rate(bench, BUSY, busy, sustained.UNDER_LOAD),
    ]


def _at_rate(bench: Workbench, title: str, rate: float, arguments: Sequence[str]) -> list[Figure]:
    """Measure one rate. Input: further `arguments` of the producer."""
    size = bench.size
    bench.say(f"{rate:.0f} tx/s for {size.warm_up_s + size.latency_s:.0f} s")
    run = run_load(bench, "latency", size.latency_s, ["--rate", str(rate), *arguments])
    sent = latencies_s(run.job.lake, TOPIC, run.began_at, run.ended_at)
    bench.forget(run.job.lake)
    seconds = [latency for _, latency in sent]
    step = max(1, len(sent) // 2_000)
    plot = Plot(f"{title}: by when it was sent", "s", "s until readable", {
        "messages": [(at - run.began_at, s) for at, s in sorted(sent)[::step]]
    }, kind="dots")  # fmt: skip
    details = {
        "readable_s": summary(seconds),
        "consumer_age_ms": summary(run.ages_ms(), 0),
        "cores": run.processor,
    }
    return [
        Figure(
            name=f"{title}, p{per_cent}",
            value=percentile(seconds, per_cent),
            unit="s",
            how=_HOW,
            better="less",
            must=must,
            aim=aim,
            details=details if per_cent == 50 else {},
            parameters={
                "rate": round(rate),
                "seconds": size.latency_s,
                "warm_up_s": size.warm_up_s,
                "messages": len(seconds),
                "producer": " ".join(arguments) or "the SDK's defaults",
            },
            plots=[plot] if per_cent == 50 else (),
        )
        for per_cent, (must, aim) in zip((50, 99), _WANTED[title], strict=True)
    ]
