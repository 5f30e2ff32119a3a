"""What an epoch that delivers some delayed messages costs more when very many others wait."""

from __future__ import annotations

import random
import time

from bench.epoch_rig import TimedRig, ratio_figure, take_turns, timed_rig
from bench.figure import Figure
from bench.sample_data import Mix
from bench.workbench import Workbench

TOGETHER, SCATTERED = "due cost", "due cost, scattered"
_LANDING = 100_000  # messages an epoch while the waiting ones are made
_STEP_MS = 60_000  # between the due times of two measured epochs
_FAR_MS = 20 * 86_400_000  # when those that only wait are due


def measure(bench: Workbench) -> list[Figure]:
    """Measure with due messages that were sent one after another, and all over the waiting ones."""
    return [_compare(bench, name, name == SCATTERED) for name in (TOGETHER, SCATTERED)]


def _compare(bench: Workbench, name: str, is_scattered: bool) -> Figure:
    size = bench.size
    place = "scattered" if is_scattered else "together"
    waiting = {"few waiting": size.waiting_few, "many waiting": size.waiting_many}
    base_ms = time.time_ns() // 1_000_000 + 3_600_000
    rounds_run = 2 + size.epoch_rounds  # the rounds that warm up deliver too
    epochs = -(-(size.waiting_many + size.due * rounds_run) // _LANDING)
    rigs = {}
    for key, count in waiting.items():
        rigs[key] = timed_rig(bench, f"delayed-{place}-{count}")
        bench.say(f"landing {count} delayed messages")
        instants = _instants(count, size.due, rounds_run, base_ms, is_scattered)
        _land(rigs[key], instants, epochs, base_ms + _FAR_MS)
    rounds: dict[str, int] = dict.fromkeys(waiting, 0)

    def prepare(key: str, _rig: TimedRig) -> int:
        rounds[key] += 1
        return base_ms + rounds[key] * _STEP_MS

    take_turns(bench, rigs, prepare)
    figure = ratio_figure(
        rigs,
        name=name,
        how=f"an epoch that delivers {size.due} delayed messages while {size.waiting_many} wait / "
        f"while {size.waiting_few} wait; those due were sent "
        + ("all over the time of the others" if is_scattered else "one after another"),
        must=1.5,
        aim=None,
        parameters={"waiting": size.waiting_many, "few": size.waiting_few, "due": size.due,
                    "rounds": size.epoch_rounds},
    )  # fmt: skip
    for rig in rigs.values():
        bench.forget(rig.rig.lake)
    return figure


def _instants(waiting: int, due: int, rounds: int, base_ms: int, is_scattered: bool) -> list[int]:
    """Return due times, of which so many are due in each round, and the others long after."""
    instants = [base_ms + number * _STEP_MS for number in range(1, rounds + 1) for _ in range(due)]
    instants += [base_ms + _FAR_MS] * waiting
    if is_scattered:
        random.Random(1).shuffle(instants)
    return instants


def _land(rig: TimedRig, instants: list[int], epochs: int, far_ms: int) -> None:
    """Land messages in so many epochs: a commit costs more the longer the logs of the tables are.

    Epochs that are left over come first and land one message.
    """
    parts = [instants[n : n + _LANDING] for n in range(0, len(instants), _LANDING)]
    for part in [[far_ms]] * (epochs - len(parts)) + parts:
        rig.writer.scheduled(part, Mix())
        rig.run()
