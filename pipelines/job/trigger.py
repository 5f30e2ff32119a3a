"""When the next micro-batch is cut: as soon as a budget of processor time allows.

An epoch costs nearly as much for three records as for three hundred. So the more often epochs
follow one another, the sooner a message can be read, and the more processor time the job takes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

# So many batches share what they used: a step of maintenance makes none of them wait long.
_AVERAGED: Final = 16


@dataclass
class Trigger:
    """The pace of a stream. Units: s.

    A batch follows the one before as soon as `cores` allow what the last sixteen used on average:
    where each used 0.4 s of processor time, with 0.8 cores, one follows 0.5 s after the other. One
    that took longer is made up for by those after it. A batch follows after `interval_s` at the
    latest, whatever they used, and at once if the one before took longer: under load the budget
    does not count. A batch without records is followed after `interval_s`.

    Input: `processor_s`: the processor time that the job has used until now; `now`: a clock.
    """

    interval_s: float
    cores: float
    processor_s: Callable[[], float]
    now: Callable[[], float] = time.monotonic
    _newest: Pace | None = field(default=None, init=False)
    _used_s: deque[float] = field(
        default_factory=lambda: deque(maxlen=_AVERAGED - 1), init=False
    )  # of the batches before the newest, each until the next began

    def batch_started(self) -> Pace:
        """Returns the pace of a batch that begins now."""
        began_at = self.now()
        counted_from = began_at
        if self._newest is not None:
            counted_from = max(began_at - self.interval_s, min(began_at, self._newest.due_at()))
            self._used_s.append(self._newest.used_s())

        self._newest = Pace(self, began_at, counted_from, self.processor_s())
        return self._newest

    def batch_s(self, used_s: float) -> float:
        """Returns how long a batch is to take that has used so much processor time until now."""
        return mean([*self._used_s, used_s]) / self.cores


@dataclass(frozen=True)
class Pace:
    """The pace of one batch. Units: s.

    `counted_from`: when it would have begun by the budget, if that was earlier; `used_before_s`:
    the processor time that the job had used when it began.
    """

    trigger: Trigger
    began_at: float
    counted_from: float
    used_before_s: float

    def longest_wait_s(self) -> float:
        """Returns the time until the next batch begins at the latest; 0 if that has passed."""
        return max(0.0, self.began_at + self.trigger.interval_s - self.trigger.now())

    def wait_s(self, *, has_records: bool) -> float:
        """Returns the time until the next batch begins. Input: whether this one had records."""
        longest_s = self.longest_wait_s()
        if not has_records:
            return longest_s

        return min(max(0.0, self.due_at() - self.trigger.now()), longest_s)

    def due_at(self) -> float:
        """Returns when the next batch may begin by the budget."""
        return self.counted_from + self.trigger.batch_s(self.used_s())

    def used_s(self) -> float:
        """Returns the processor time since it began, at most what the longest wait pays for.

        A Python worker that ended took its time with it.
        """
        trigger = self.trigger
        used_s = max(0.0, trigger.processor_s() - self.used_before_s)
        return min(used_s, trigger.interval_s * trigger.cores)
