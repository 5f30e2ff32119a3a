"""Run single epochs over real Kafka and a real lake, in this process and without a stream."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from bench.epoch_times import EpochTime, epoch_times
from bench.sample_data import Writer
from bench.usage import processor_s
from bench.workbench import Workbench
from pipelines.settings import Settings
from tests.support.epoch_harness import EpochHarness


@dataclass
class TimedRig:
    """The epochs of one lake, and how long those took that were asked to be timed."""

    rig: EpochHarness
    writer: Writer
    settings: Settings
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)  # of this process and its JVM
    epochs: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Run one epoch over all that waits, and note how long the epoch alone took.

        Errors: RuntimeError when there was nothing to do.
        """
        ends = self.rig.waiting()
        self.rig.now_ms = time.time_ns() // 1_000_000
        used = processor_s(os.getpgrp())
        began = time.perf_counter()
        plan = self.rig.epochs.run(ends)
        if plan is None:
            raise RuntimeError("nothing waited for this epoch")

        self.seconds.append(time.perf_counter() - began)
        self.processor_s.append(processor_s(os.getpgrp()) - used)
        self.epochs.append(plan.epoch)

    def close(self) -> None:
        """Ends threads and clients."""
        self.rig.__exit__(None, None, None)

    def times(self) -> list[EpochTime]:
        """Return the steps of the epochs that count."""
        return [t for t in epoch_times(self.rig.lake) if t.epoch in self.epochs]


def timed_rig(bench: Workbench, lake: str) -> TimedRig:
    """Return the epochs of a new lake with topics of the same name."""
    assert bench.own_spark is not None
    writer = bench.writer(lake)
    settings = bench.settings(lake)
    rig = EpochHarness(bench.own_spark, settings)
    rig.start()
    return TimedRig(rig, writer, settings)
