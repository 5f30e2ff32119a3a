"""When the next micro-batch is cut: on time, late, and under a clock that steps."""

from __future__ import annotations

import pytest

from pipelines.job.trigger import Trigger


class Clock:
    """A wall clock that a test sets."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def batch(trigger: Trigger, clock: Clock, begins: float, ends: float) -> float:
    """Run a batch. Output: how long to wait after it."""
    clock.now = begins
    trigger.batch_started()
    clock.now = ends
    wait_s = trigger.wait_s()
    clock.now = ends + wait_s
    trigger.batch_finished()
    return wait_s


def test_a_batch_on_time_waits_until_shortly_before_the_next() -> None:
    clock = Clock(10.4)
    trigger = Trigger(1.0, clock)
    assert batch(trigger, clock, 10.45, 10.7) == pytest.approx(0.2)
    # Spark began at 11.0 and called us a little later.
    assert batch(trigger, clock, 11.08, 11.5) == pytest.approx(0.4)


def test_a_batch_that_took_longer_does_not_wait() -> None:
    clock = Clock(10.4)
    trigger = Trigger(1.0, clock)
    assert batch(trigger, clock, 10.45, 11.3) == 0
    # Begun at once, and so before 12.0.
    assert batch(trigger, clock, 11.35, 11.6) == pytest.approx(0.3)


def test_a_batch_that_may_have_begun_before_the_boundary_does_not_wait_for_the_one_after() -> None:
    clock = Clock(10.4)
    trigger = Trigger(1.0, clock)
    assert batch(trigger, clock, 10.45, 11.97) == 0
    # Begun at 11.98 or at 12.0: if the first, Spark goes on at once, so a wait would delay it.
    assert batch(trigger, clock, 12.03, 12.4) == 0


def test_a_clock_set_back_makes_nobody_wait_longer_than_the_interval() -> None:
    clock = Clock(100.4)
    trigger = Trigger(1.0, clock)
    clock.now = 100.45
    trigger.batch_started()
    clock.now = 50.0
    assert trigger.wait_s() == 1.0
