"""How fast the job alone lands, decides and delivers what waits in Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from bench.epoch_times import EpochTime, cadence_s, epoch_times, steps_s
from bench.figure import Figure, Plot
from bench.job_process import BenchError
from bench.sample_data import Written
from bench.usage import processor_s
from bench.workbench import Workbench

_TIMEOUT_S = 1_800.0


@dataclass(frozen=True)
class Drained:
    """A drain: its epochs, and the processor time of the job while they ran. Units: s."""

    times: list[EpochTime]
    processor_s: float

    @property
    def seconds(self) -> float:
        """Give the time from the first epoch's beginning to the last one's commit."""
        return self.times[-1].ended_at - self.times[0].began_at


def drained(bench: Workbench, lake: str, topics: str, written: Written) -> Drained:
    """Run the job on a new lake until all that waits is committed.

    Errors: BenchError when the lake does not have all of it then.
    """
    bench.forget(lake)
    bench.say(f"the job drains {written.records} records into {lake}")
    with bench.job(lake, topics) as job:
        job.wait_until_streaming()
        before = processor_s(job.group)
        job.wait_until_landed(written.records, _TIMEOUT_S)
        used = processor_s(job.group) - before
    times = epoch_times(job.lake)
    while not times[-1].halves:  # checks, while the job was stopped
        times.pop()
    if sum(time.halves for time in times) != written.halves:
        raise BenchError(f"{lake} does not have all of {written.halves} halves")
    return Drained(times, used)


def measure(bench: Workbench) -> list[Figure]:
    """Drain once. Output: transactions a second, without the start of the process."""
    count = bench.size.drain_transactions
    topics, written = bench.waiting(count)
    drain = drained(bench, "drain", topics, written)
    times, seconds = drain.times, drain.seconds
    bench.measured["drain", count] = drain
    spans = [times[0].seconds, *cadence_s(times)]
    rates = [time.halves / span for time, span in zip(times, spans, strict=True)]
    warm = times[len(times) // 2 :]
    steps = steps_s(times)
    return [Figure(
        name="drain",
        value=count / seconds,
        unit="tx/s",
        how="transactions that wait in Kafka / time from the beginning of the first epoch to the "
        "last commit; the job alone, its start not counted",
        must=36_000,
        aim=60_000,
        samples=[round(rate) for rate in rates],
        details={
            "seconds": round(seconds, 2),
            "epochs": len(times),
            "processor_us_per_transaction": round(drain.processor_s / count * 1e6, 1),
            "second_half_tx_s": round(sum(t.halves for t in warm) / _warm_s(times, warm)),
            "step_s": steps,
            "step_share": {k: round(s / seconds, 3) for k, s in steps.items()},
        },
        parameters={"transactions": count, "records": written.records, "body_bytes": 256,
                    "user_properties": 4, "rolled_back": 0.02, "unanswered": 0.01},
        plots=[
            Plot("drain: transactions a second, by epoch", "epoch", "tx/s",
                 {"rate": [(t.epoch, r) for t, r in zip(times, rates, strict=True)]}),
            Plot("drain: where the time goes", "step", "s",
                 {"all epochs": list(steps.items())}, kind="bars"),
        ],
    )]  # fmt: skip


def _warm_s(times: list[EpochTime], warm: list[EpochTime]) -> float:
    """Give the time of the warm epochs, the pauses before them counted."""
    before = times[: len(times) - len(warm)]
    return warm[-1].ended_at - (before[-1].ended_at if before else warm[0].began_at)
