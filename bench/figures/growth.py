"""Whether small epochs stay as quick as they were, thousands of epochs later."""

from __future__ import annotations

import statistics
import time

from bench.epoch_times import cadence_s, epoch_times, median_steps_ms
from bench.figure import Figure, Plot
from bench.job_process import BenchError
from bench.sample_data import Mix
from bench.workbench import Workbench

_START_S = 60.0
_POINTS = 200  # of the plot


def measure(bench: Workbench) -> list[Figure]:
    """Let the job drain prepared records in very small epochs, without a pause.

    Where time is up before that, what was reached is compared.
    """
    size = bench.size
    mix = Mix(unanswered=0.0, rolled_back=0.0, ends_per_operation=1)
    # A transaction is two records here, its half and its end.
    topics, written = bench.waiting(size.growth_epochs * size.growth_records // 2, mix)
    bench.say(f"the job runs {size.growth_epochs} small epochs")
    stream = {"max_offsets_per_trigger": size.growth_records, "trigger_interval_ms": 1}
    with bench.job("growth", topics, stream=stream) as job:
        end = time.monotonic() + _START_S + size.growth_s
        job.wait_for(
            lambda: job.landed() >= written.records or time.monotonic() > end,
            "small epochs", 2 * (_START_S + size.growth_s),
        )  # fmt: skip
    times = [epoch for epoch in epoch_times(job.lake) if epoch.records]
    cadence = cadence_s(times)
    window = min(size.growth_window, len(cadence) // 3)
    if not window:
        raise BenchError(f"{len(times)} epochs within {size.growth_s:.0f} s: too few to compare")
    # The first epochs warm the JVM up: they are compared with none.
    early, late = slice(window, 2 * window), slice(len(cadence) - window, len(cadence))
    before, after = statistics.median(cadence[early]), statistics.median(cadence[late])
    step = max(1, len(cadence) // _POINTS)
    smooth = [
        (times[at].epoch, statistics.median(cadence[at : at + step]))
        for at in range(0, len(cadence), step)
    ]
    return [Figure(
        name="growth",
        value=after / before,
        unit="ratio",
        how=f"median time from commit to commit of the last {window} of {len(times)} epochs of an "
        f"uninterrupted run / of the second {window}; {size.growth_records} records an epoch",
        better="less",
        must=1.2,
        aim=1.05,
        samples=[round(before, 4), round(after, 4)],
        details={
            "epochs": len(times),
            "early_median_s": round(before, 4),
            "late_median_s": round(after, 4),
            "early_step_ms": median_steps_ms(times[early]),
            "late_step_ms": median_steps_ms(times[late]),
        },
        parameters={"epochs": size.growth_epochs, "records": size.growth_records,
                    "window": window},
        plots=[Plot("growth: from commit to commit", "epoch", "s", {"median": smooth})],
    )]  # fmt: skip
