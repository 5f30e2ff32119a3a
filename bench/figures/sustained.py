"""What producer, job and consumer sustain together on this machine, and the job's memory then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.bodies import JSON
from bench.epoch_times import epoch_times, median_steps_ms
from bench.figure import Figure, Plot, summary
from bench.load import LoadRun, run_load
from bench.workbench import Workbench

# A producer that sends all it can collects records for longer than the SDK does by itself.
UNDER_LOAD = ("--linger-ms", "100")
SMALL: Final = ("sustained", 256)
MIDDLE: Final = ("sustained", 2_048)  # bytes of a body
# Name, must and aim.
_WANTED = {SMALL: ("sustained", 16_000, 24_000), MIDDLE: ("sustained, 2 KiB", None, None)}


@dataclass(frozen=True)
class Sustained:
    """What other figures take from this one: transactions a second, and what was seen meanwhile."""

    rate: float
    run: LoadRun


def measure(bench: Workbench) -> list[Figure]:
    """Let the producer send as much as is consumed: bodies of 256 B, then of 2 KiB."""
    return [measure_one(bench, kind) for kind in (SMALL, MIDDLE)]


def measure_one(bench: Workbench, kind: tuple[str, int]) -> Figure:
    """Measure one size of bodies, and keep what was found for other figures."""
    size = bench.size
    body_bytes = kind[1]
    bench.say(f"all processes together for {size.warm_up_s + size.sustained_s:.0f} s")

    of_bodies = ["--body", JSON, "--body-bytes", str(body_bytes)]
    arguments = ["--in-flight", str(size.in_flight), *UNDER_LOAD, *of_bodies]
    run = run_load(bench, "sustained", size.sustained_s, arguments)
    value, halves = sustained_rate(run)
    bench.measured[kind] = Sustained(value, run)

    name, must, aim = _WANTED[kind]
    middle = (run.began_at + run.ended_at) / 2
    in_time = [t for t in epoch_times(run.job.lake) if run.began_at <= t.ended_at <= run.ended_at]

    bench.forget(run.job.lake)
    began = run.counts[0][0]

    return Figure(
        name=name,
        value=value,
        unit="tx/s",
        how="transactions landed, between the first and the last commit of the time measured / "
        "that time; the SDK's producer sends while not more than a number of messages are not "
        "consumed yet, so the backlog cannot grow",
        must=must,
        aim=aim,
        samples=[round(t.halves / t.seconds) for t in in_time],
        details={
            "first_half_tx_s": round(_rate(run, run.began_at, middle)),
            "second_half_tx_s": round(_rate(run, middle, run.ended_at)),
            "not_consumed": {"first": _lag(run, 0), "last": _lag(run, -1)},
            "transactions": halves,
            "epochs": len(in_time),
            "consumer_age_ms": summary(run.ages_ms(), 0),
            "cores": run.processor,
            "job_resident_gb_max": round(max(run.resident_bytes) / 1e9, 2),
            "median_step_ms": median_steps_ms(in_time),
        },
        parameters={
            "seconds": size.sustained_s,
            "warm_up_s": size.warm_up_s,
            "in_flight": size.in_flight,
            "body_bytes": body_bytes,
            "body": JSON,
            "rolled_back": 0.02,
            "unanswered": 0.01,
        },
        plots=[
            Plot(
                f"{name}: messages that are not consumed yet",
                "s",
                "messages",
                {"in flight": [(at - began, sent - seen) for at, sent, seen in run.counts]},
            )
        ],
    )


def sustained_rate(run: LoadRun) -> tuple[float, int]:
    """Return halves a second between commits, and how many these were."""
    times = [t for t in epoch_times(run.job.lake) if run.began_at <= t.ended_at <= run.ended_at]
    if len(times) < 2:
        raise RuntimeError(f"{len(times)} epochs in the time measured: measure for longer")
    halves = sum(time.halves for time in times[1:])
    return halves / (times[-1].ended_at - times[0].ended_at), halves


def _rate(run: LoadRun, begin: float, end: float) -> float:
    """Return committed messages sent a second in a part of the time."""
    seen = [(at, committed) for at, committed, _ in run.counts if begin <= at <= end]
    return (seen[-1][1] - seen[0][1]) / max(seen[-1][0] - seen[0][0], 1e-9)


def _lag(run: LoadRun, index: int) -> int:
    _, committed, consumed = run.counts[index]
    return committed - consumed
