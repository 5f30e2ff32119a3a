"""What producer, job and consumer sustain together on this machine, and the job's memory then."""

from __future__ import annotations

from bench.epoch_times import epoch_times, median_steps_ms
from bench.figure import Figure, Plot, summary
from bench.load import LoadRun, run_load
from bench.workbench import Workbench

# A producer that sends all it can collects records for longer than the SDK does by itself.
UNDER_LOAD = ("--linger-ms", "20")


def measure(bench: Workbench) -> list[Figure]:
    """Let the producer send as much as is consumed."""
    size = bench.size
    bench.say(f"all processes together for {size.warm_up_s + size.sustained_s:.0f} s")
    arguments = ["--in-flight", str(size.in_flight), *UNDER_LOAD]
    run = run_load(bench, "sustained", size.sustained_s, arguments)
    value, halves = sustained_rate(run)
    bench.measured |= {"sustained": value, "sustained resident_bytes": run.resident_bytes}
    middle = (run.began_at + run.ended_at) / 2
    in_time = [t for t in epoch_times(run.job.lake) if run.began_at <= t.ended_at <= run.ended_at]
    bench.forget(run.job.lake)
    began = run.counts[0][0]
    return [Figure(
        name="sustained",
        value=value,
        unit="tx/s",
        how="transactions landed, between the first and the last commit of the time measured / "
        "that time; the SDK's producer sends while not more than a number of messages are not "
        "consumed yet, so the backlog cannot grow",
        must=16_000,
        aim=24_000,
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
        parameters={"seconds": size.sustained_s, "warm_up_s": size.warm_up_s,
                    "in_flight": size.in_flight, "body_bytes": 256, "rolled_back": 0.02,
                    "unanswered": 0.01},
        plots=[Plot("sustained: messages that are not consumed yet", "s", "messages", {
            "in flight": [(at - began, sent - seen) for at, sent, seen in run.counts]})],
    )]  # fmt: skip


def sustained_rate(run: LoadRun) -> tuple[float, int]:
    """Give halves a second between commits, and how many these were."""
    times = [t for t in epoch_times(run.job.lake) if run.began_at <= t.ended_at <= run.ended_at]
    if len(times) < 2:
        raise RuntimeError(f"{len(times)} epochs in the time measured: measure for longer")
    halves = sum(time.halves for time in times[1:])
    return halves / (times[-1].ended_at - times[0].ended_at), halves


def _rate(run: LoadRun, begin: float, end: float) -> float:
    """Give committed messages sent a second in a part of the time."""
    seen = [(at, committed) for at, committed, _ in run.counts if begin <= at <= end]
    return (seen[-1][1] - seen[0][1]) / max(seen[-1][0] - seen[0][0], 1e-9)


def _lag(run: LoadRun, index: int) -> int:
    _, committed, consumed = run.counts[index]
    return committed - consumed
