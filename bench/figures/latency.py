"""How long after it is sent a message can be read: at a quiet rate, at 70 % of the sustained.

With bodies of 256 B, of which something is asked, and of 2 KiB beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.bodies import JSON
from bench.figure import Figure, Plot, percentile, summary
from bench.figures import sustained
from bench.load import LoadRun, run_load
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
_WANTED = {QUIET: ((0.5, 0.35), (0.9, 0.6)), BUSY: ((2.5, 1.5), (6.0, 3.0))}


@dataclass(frozen=True)
class Latencies:
    """One run at a rate. `sent`: when each message was sent, and how long until it was readable."""

    sent: list[tuple[float, float]]
    run: LoadRun

    def seconds(self) -> list[float]:
        """Return how long each message took."""
        return [latency for _, latency in self.sent]


def measure(bench: Workbench) -> list[Figure]:
    """Measure both rates; what is sustained is measured first where it was not."""
    figures = []
    for kind in (sustained.SMALL, sustained.MIDDLE):
        if kind not in bench.measured:
            sustained.measure_one(bench, kind)
        busy = _BUSY_SHARE * bench.measured[kind].rate
        body_bytes = kind[1]
        figures += _at_rate(bench, QUIET, bench.size.rate, body_bytes, ())
        figures += _at_rate(bench, BUSY, busy, body_bytes, sustained.UNDER_LOAD)
    return figures


def latencies(
    bench: Workbench, rate: float, body_bytes: int, arguments: Sequence[str] = ()
) -> Latencies:
    """Run everything at a rate. Input: as `run_load`; further `arguments` of the producer."""
    size = bench.size
    bench.say(f"{rate:.0f} tx/s for {size.warm_up_s + size.latency_s:.0f} s")
    of_rate = ["--rate", str(rate), "--body", JSON, "--body-bytes", str(body_bytes)]
    run = run_load(bench, "latency", size.latency_s, [*of_rate, *arguments])
    lake = run.job.lake
    sent = latencies_s(lake, bench.files_of(lake), TOPIC, run.began_at, run.ended_at)
    bench.forget(lake)
    return Latencies(sent, run)


def _at_rate(
    bench: Workbench, title: str, rate: float, body_bytes: int, arguments: Sequence[str]
) -> list[Figure]:
    found = latencies(bench, rate, body_bytes, arguments)
    # What is asked, is asked of small bodies.
    wanted = _WANTED[title] if body_bytes == sustained.SMALL[1] else ((None, None),) * 2
    title += "" if body_bytes == sustained.SMALL[1] else ", 2 KiB"

    seconds = found.seconds()
    run = found.run
    step = max(1, len(seconds) // 2_000)

    plot = Plot(
        f"{title}: by when it was sent",
        "s",
        "s until readable",
        {"messages": [(at - run.began_at, s) for at, s in sorted(found.sent)[::step]]},
        kind="dots",
    )
    details = {
        "readable_s": summary(seconds),
        "consumer_age_ms": summary(run.ages_ms(), 0),
        "cores": run.processor,
    }

    parameters: dict[str, Any] = {
        "rate": round(rate),
        "seconds": bench.size.latency_s,
        "warm_up_s": bench.size.warm_up_s,
        "messages": len(seconds),
        "body_bytes": body_bytes,
        "body": JSON,
        "producer": " ".join(arguments) or "the SDK's defaults",
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
            parameters=parameters,
            plots=[plot] if per_cent == 50 else (),
        )
        for per_cent, (must, aim) in zip((50, 99), wanted, strict=True)
    ]
