"""When the next micro-batch is cut: by a budget of processor time, within the longest wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipelines.job.processor_time import ProcessorTime
from pipelines.job.trigger import Trigger
from tests.support.wait import wait_until


class Machine:
    """A clock, and a job's processor time, that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.used_s = 7.0

    def trigger(self, interval_s: float, cores: float) -> Trigger:
        return Trigger(interval_s, cores, lambda: self.used_s, lambda: self.now_s)


CASES = [  # interval, cores; processor time and duration of the batch, has records | wait | why
    (1.0, 0.8, 0.2, 0.15, True, 0.1, "0.2 s of processor time are 0.25 s of 0.8 cores"),
    (1.0, 0.8, 0.4, 0.5, True, 0.0, "it kept to the budget by its own length"),
    (1.0, 0.8, 0.4, 0.3, True, 0.2, "two cores worked: as long as it needs to be 0.8 on average"),
    (1.0, 0.1, 0.4, 0.3, True, 0.7, "a small budget: the interval is the longest wait"),
    (1.0, 0.8, 3.0, 2.0, True, 0.0, "under load: a batch longer than the interval is followed"),
    (1.0, 0.8, 1.9, 0.99, True, 0.01, "the budget does not hold a batch beyond the interval"),
    (1.0, 0.8, 0.01, 0.05, False, 0.95, "nothing came: the interval"),
    (1.0, 0.8, 0.01, 1.2, False, 0.0, "nothing came, and the interval has passed"),
    (1.0, 8.0, 0.4, 0.3, True, 0.0, "a budget that is never reached: one follows the other"),
    (0.2, 0.8, 0.4, 0.15, True, 0.05, "a short interval wins over the budget"),
    (1.0, 0.8, -5.0, 0.3, True, 0.0, "a worker ended, and its time with it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("interval_s", "cores", "used_s", "took_s", "has_records", "wait_s"),
    [case[:6] for case in CASES],
    ids=[case[6] for case in CASES],
)
def test_the_next_batch_follows_by_the_budget(
    interval_s: float, cores: float, used_s: float, took_s: float, has_records: bool, wait_s: float
) -> None:
    machine = Machine()
    pace = machine.trigger(interval_s, cores).batch_started()
    machine.now_s += took_s
    machine.used_s += used_s
    assert pace.wait_s(has_records=has_records) == pytest.approx(wait_s)


def _run_batches(
    machine: Machine, trigger: Trigger, batches: list[tuple[float, float]]
) -> list[float]:
    """Run batches that use so much processor time and take so long. Output: from begin to begin."""
    intervals_s = []
    for used_s, took_s in batches:
        pace = trigger.batch_started()
        machine.now_s += took_s
        machine.used_s += used_s
        wait_s = pace.wait_s(has_records=True)
        machine.now_s += wait_s
        intervals_s.append(took_s + wait_s)
    return intervals_s


USUAL = (0.16, 0.1)  # 0.2 s of 0.8 cores


def test_what_one_batch_uses_is_shared_by_sixteen() -> None:
    machine = Machine()
    batches = [USUAL] * 20 + [(0.48, 0.1)] + [USUAL] * 20
    intervals_s = _run_batches(machine, machine.trigger(1.0, 0.8), batches)

    assert intervals_s[:20] == pytest.approx([0.2] * 20)
    assert intervals_s[20:36] == pytest.approx([0.225] * 16), "0.32 s of 0.8 cores, in 16 parts"
    assert intervals_s[36:] == pytest.approx([0.2] * 5)


def test_a_batch_that_took_longer_than_its_budget_is_made_up_for() -> None:
    machine = Machine()
    batches = [USUAL] * 20 + [(0.16, 0.35)] + [USUAL] * 3
    intervals_s = _run_batches(machine, machine.trigger(1.0, 0.8), batches)

    assert intervals_s[20:] == pytest.approx([0.35, 0.1, 0.15, 0.2]), "as long as five usual ones"
    assert sum(intervals_s[20:]) == pytest.approx(4 * 0.2)


def test_not_more_than_the_longest_wait_is_made_up_for() -> None:
    machine = Machine()
    batches = [USUAL, (0.16, 60.0)] + [USUAL] * 20
    intervals_s = _run_batches(machine, machine.trigger(1.0, 0.8), batches)

    assert intervals_s[2:] == pytest.approx([0.1] * 10 + [0.2] * 10)


def test_a_batch_that_used_very_much_does_not_hold_back_those_after_it() -> None:
    """The first batch of a start: it counts for what its own longest wait pays for."""
    machine = Machine()
    batches = [USUAL] * 20 + [(9.0, 0.1), USUAL]
    intervals_s = _run_batches(machine, machine.trigger(1.0, 0.8), batches)

    assert intervals_s[20:] == pytest.approx([0.25, 0.25])


def test_what_an_epoch_uses_after_its_batch_counts_for_the_next() -> None:
    """An epoch is finished while the next batch is read: on average the budget is kept."""
    machine = Machine()
    trigger = machine.trigger(1.0, 0.8)

    first = trigger.batch_started()
    machine.now_s += 0.2
    assert first.wait_s(has_records=True) == 0.0
    machine.used_s += 0.16
    second = trigger.batch_started()
    machine.now_s += 0.1
    machine.used_s += 0.24
    assert second.wait_s(has_records=True) == pytest.approx(0.15), "0.2 s each, by 0.8 cores"


def test_the_longest_wait_counts_from_the_beginning_of_a_batch() -> None:
    machine = Machine()
    pace = machine.trigger(1.0, 0.8).batch_started()
    machine.now_s += 0.4
    assert pace.longest_wait_s() == pytest.approx(0.6)
    machine.now_s += 0.7
    assert pace.longest_wait_s() == 0.0


_BUSY = "import sys\nwhile True:\n    sum(range(10_000))\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_processor_time_is_that_of_a_process_and_of_all_that_it_has_started() -> None:
    shell = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}])",
        ],
        start_new_session=True,
    )
    try:
        # A new one each time: it looks for new processes only now and then.
        wait_until(
            lambda: ProcessorTime([shell.pid])() > 0.5,
            "processor time of the process in it",
            seen=lambda: ProcessorTime([shell.pid])(),
        )
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()
    assert ProcessorTime([shell.pid])() == 0.0
