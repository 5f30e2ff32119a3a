"""Run single epochs over real Kafka and a real lake, and compare two kinds of them.

Epochs of a rig, in this process and without a stream. What is compared differs in one thing, and
the two take turns (A B A B), so that the machine's noise hits both.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.epoch_times import EpochTime, epoch_times, median_steps_ms
from bench.figure import Figure, Plot
from bench.sample_data import Mix, Writer
from bench.usage import processor_s
from bench.workbench import Workbench
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from tests.support.epoch_harness import EpochHarness

_WARM_UP_ROUNDS = 2


@dataclass
class TimedRig:
    """The epochs of one lake, and how long those took that were asked to be timed."""

    rig: EpochHarness
    writer: Writer
    settings: Settings
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)  # of this process and its JVM
    epochs: list[int] = field(default_factory=list)

    def run(self, at_ms: int | None = None) -> None:
        """Run one epoch over all that waits, and note how long the epoch alone took.

        Errors: RuntimeError when there was nothing to do.
        """
        if self.run_if_due(time.time_ns() // 1_000_000 if at_ms is None else at_ms) is None:
            raise RuntimeError("nothing waited for this epoch")

    def run_if_due(self, at_ms: int) -> Plan | None:
        """Run one epoch as `run` does. Output: its plan; None when there was nothing to do."""
        records, ends = self.rig.waiting()
        self.rig.now_ms = at_ms
        used, began = processor_s(os.getpgrp()), time.perf_counter()
        plan = self.rig.epochs.run(records, ends)
        if plan is not None:
            self.seconds.append(time.perf_counter() - began)
            self.processor_s.append(processor_s(os.getpgrp()) - used)
            self.epochs.append(plan.epoch)
        return plan

    def close(self) -> None:
        """Ends threads and clients."""
        self.rig.__exit__(None, None, None)

    def forget(self) -> None:
        """Count no epoch that ran until now."""
        self.seconds.clear()
        self.processor_s.clear()
        self.epochs.clear()

    def times(self) -> list[EpochTime]:
        """Return the steps of the epochs that count."""
        return [t for t in epoch_times(self.rig.lake) if t.epoch in self.epochs]


def timed_rig(bench: Workbench, lake: str, **sections: dict[str, Any]) -> TimedRig:
    """Return the epochs of a new lake with topics of the same name."""
    writer = bench.writer(lake)
    settings = bench.settings(lake, None, **sections)
    rig = EpochHarness(bench.spark(), settings)
    rig.start()
    return TimedRig(rig, writer, settings)


def land_halves(rig: TimedRig, count: int, mix: Mix, epoch_records: int) -> None:
    """Land halves that nobody ends, in epochs of a usual size."""
    for start in range(0, count, epoch_records):
        rig.writer.halves(min(epoch_records, count - start), mix)
        rig.run()


def take_turns(
    bench: Workbench, rigs: dict[str, TimedRig], prepare: Callable[[str, TimedRig], int | None]
) -> None:
    """Time epochs of several lakes in turn; the first rounds only warm up.

    Input: `prepare` writes what the next epoch of a lake finds, and may give its T.
    """
    warm_up = min(_WARM_UP_ROUNDS, bench.size.epoch_rounds)
    for number in range(warm_up + bench.size.epoch_rounds):
        if number == warm_up:
            for rig in rigs.values():
                rig.forget()
        for name, rig in rigs.items():
            rig.run(prepare(name, rig))
    for name, rig in rigs.items():
        bench.say(f"{name}: {statistics.median(rig.seconds):.3f} s an epoch")
        rig.close()


def ratio_figure(
    rigs: dict[str, TimedRig], *, name: str, how: str, must: float, aim: float | None,
    parameters: dict[str, object],
) -> Figure:  # fmt: skip
    """Return the figure of a comparison: the median epoch of the last lake over the first one's."""
    first, last = (rigs[key].seconds for key in (next(iter(rigs)), next(reversed(rigs))))
    return Figure(
        name=name,
        value=statistics.median(last) / statistics.median(first),
        unit="ratio",
        how=f"{how}; median epochs in this process, in turn",
        better="less",
        must=must,
        aim=aim,
        samples=[round(b / a, 3) for a, b in zip(first, last, strict=True)],
        details={
            key: {
                "epoch_s": [round(s, 3) for s in rig.seconds],
                "median_s": round(statistics.median(rig.seconds), 3),
                "median_processor_s": round(statistics.median(rig.processor_s), 3),
                "median_step_ms": median_steps_ms(rig.times()),
            }
            for key, rig in rigs.items()
        },
        parameters=parameters,
        plots=[Plot(f"{name}: epochs in turn", "round", "s",
                    {k: list(enumerate(r.seconds)) for k, r in rigs.items()}, kind="dots")],
    )  # fmt: skip
