"""When the next micro-batch is cut: as soon as a budget of processor time allows.

An epoch costs nearly as much for three records as for three hundred. So the more often epochs
follow one another, the sooner a message can be read, and the more processor time the job takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Trigger:
    """The pace of a stream. Units: s.

    A batch follows the one before when both together keep to `cores`: one that used 0.4 s of
    processor time, with 0.8 cores, is followed 0.5 s after it began. It is followed after
    `interval_s` at the latest, whatever it used, and at once if it took longer: under load the
    budget does not count. A batch without records is followed after `interval_s`.

    Input: `processor_s`: the processor time that the job has used until now; `now`: a clock.
    """

    interval_s: float
    cores: float
    processor_s: Callable[[], float]
    now: Callable[[], float] = time.monotonic

    def batch_started(self) -> Pace:
        """Returns the pace of a batch that begins now."""
        return Pace(self, self.now(), self.processor_s())


@dataclass(frozen=True)
class Pace:
    """The pace of one batch. Units: s.

    `used_before_s`: the processor time that the job had used when it began.
    """

    trigger: Trigger
    began_at: float
    used_before_s: float

    def longest_wait_s(self) -> float:
        """Returns the time until the next batch begins at the latest; 0 if that has passed."""
        return max(0.0, self.began_at + self.trigger.interval_s - self.trigger.now())

    def wait_s(self, *, has_records: bool) -> float:
        """Returns the time until the next batch begins. Input: whether this one had records."""
        longest_s = self.longest_wait_s()
        if not has_records:
            return longest_s

        used_s = max(0.0, self.trigger.processor_s() - self.used_before_s)
        within_budget_s = self.began_at + used_s / self.trigger.cores - self.trigger.now()
        return min(max(0.0, within_budget_s), longest_s)
