"""How fast the job alone lands, decides and delivers what waits in Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.bodies import JSON
from bench.epoch_times import EpochTime, cadence_s, epoch_times, steps_s
from bench.figure import Figure, Plot
from bench.job_process import BenchError
from bench.sample_data import Written
from bench.usage import Watch, own_processor_s, processor_s
from bench.workbench import Workbench

_TIMEOUT_S = 1_800.0


@dataclass(frozen=True)
class Drained:
    """A drain: its epochs, and what the job used while they ran. Units: s.

    `driver_s`: that of the driver's Python alone, without the JVM and Spark's Python workers.
    """

    times: list[EpochTime]
    processor_s: float
    driver_s: float
    resident_bytes: int  # at the most, all processes of the job

    @property
    def seconds(self) -> float:
        """Return the time from the first epoch's beginning to the last one's commit."""
        return self.times[-1].ended_at - self.times[0].began_at

    @property
    def halves(self) -> int:
        """Return how many transactions it landed."""
        return sum(time.halves for time in self.times)

    def a_transaction_us(self, seconds: float) -> float:
        """Return what a part of the processor time is for each transaction."""
        return round(seconds / self.halves * 1e6, 2)


def drained(
    bench: Workbench, lake: str, topics: str, written: Written, **sections: dict[str, Any]
) -> Drained:
    """Run the job on a new lake until all that waits is committed.

    Input: `sections` of the job's settings.
    Errors: BenchError when the lake does not have all of it then.
    """
    bench.forget(lake)
    bench.say(f"the job drains {written.records} records into {lake}")
    with bench.job(lake, topics, **sections) as job:
        job.wait_until_streaming()
        before = processor_s(job.group)
        driver_before = own_processor_s(job.group)
        with Watch(job.group) as watch:
            job.wait_until_landed(written.records, _TIMEOUT_S)
        used = processor_s(job.group) - before
        by_driver = own_processor_s(job.group) - driver_before

    times = epoch_times(job.lake)
    while not times[-1].halves:  # checks, while the job was stopped
        times.pop()

    if sum(time.halves for time in times) != written.halves:
        raise BenchError(f"{lake} does not have all of {written.halves} halves")

    return Drained(times, used, by_driver, max(watch.resident_bytes))


def measure(bench: Workbench) -> list[Figure]:
    """Drain once. Output: transactions a second, without the start of the process; the driver's
    own processor time."""
    count = bench.size.drain_transactions
    topics, written = bench.waiting(count)
    drain = drained(bench, "drain", topics, written)
    times, seconds = drain.times, drain.seconds

    spans = [times[0].seconds, *cadence_s(times)]
    rates = [time.halves / span for time, span in zip(times, spans, strict=True)]
    warm = times[len(times) // 2 :]
    steps = steps_s(times)

    parameters = {
        "transactions": count,
        "records": written.records,
        "body_bytes": 256,
        "body": JSON,
        "user_properties": 4,
        "rolled_back": 0.02,
        "unanswered": 0.01,
    }

    return [
        Figure(
            name="drain",
            value=count / seconds,
            unit="tx/s",
            how="transactions that wait in Kafka / time from the beginning of the first epoch to "
            "the last commit; the job alone, its start not counted",
            must=36_000,
            aim=60_000,
            samples=[round(rate) for rate in rates],
            details={
                "seconds": round(seconds, 2),
                "epochs": len(times),
                "processor_us_per_transaction": drain.a_transaction_us(drain.processor_s),
                "second_half_tx_s": round(sum(t.halves for t in warm) / _warm_s(times, warm)),
                "step_s": steps,
                "step_share": {k: round(s / seconds, 3) for k, s in steps.items()},
            },
            parameters=parameters,
            plots=[
                Plot(
                    "drain: transactions a second, by epoch",
                    "epoch",
                    "tx/s",
                    {"rate": [(t.epoch, r) for t, r in zip(times, rates, strict=True)]},
                ),
                Plot(
                    "drain: where the time goes",
                    "step",
                    "s",
                    {"all epochs": list(steps.items())},
                    kind="bars",
                ),
            ],
        ),
        Figure(
            name="driver's Python",
            value=drain.a_transaction_us(drain.driver_s),
            unit="us",
            how="processor time of the driver's Python in the drain, all its threads, the JVM and "
            "Spark's Python workers left out / transactions; epochs are as large as the settings "
            "let them be",
            better="less",
            must=5.0,
            aim=2.0,
            details={
                "of_all_processes_us": drain.a_transaction_us(drain.processor_s),
                "records_of_an_epoch": max(time.records for time in times),
            },
            parameters=parameters,
        ),
    ]


def _warm_s(times: list[EpochTime], warm: list[EpochTime]) -> float:
    """Return the time of the warm epochs, the pauses before them counted."""
    before = times[: len(times) - len(warm)]
    return warm[-1].ended_at - (before[-1].ended_at if before else warm[0].began_at)
