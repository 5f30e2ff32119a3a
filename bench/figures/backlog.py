"""What an epoch costs more when very many halves wait for their end."""

from __future__ import annotations

from bench.epoch_rig import TimedRig, land_halves, ratio_figure, take_turns, timed_rig
from bench.figure import Figure
from bench.sample_data import Mix
from bench.workbench import Workbench

_LANDING = 100_000  # halves an epoch while the backlog is made
_NOTHING_IS_DUE = {"transaction_timeout_ms": 86_400_000}


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between a lake with many pending halves and one with none."""
    size = bench.size
    names = {"none pending": "backlog-none", "many pending": "backlog-many"}
    rigs = {
        name: timed_rig(bench, lake, transaction=_NOTHING_IS_DUE) for name, lake in names.items()
    }
    bench.say(f"landing {size.backlog_pending} halves that nobody ends")
    land_halves(rigs["many pending"], size.backlog_pending, Mix(), _LANDING)
    mix = Mix(unanswered=0.0)

    def prepare(_name: str, rig: TimedRig) -> None:
        rig.writer.transactions(size.epoch_transactions, mix)

    take_turns(bench, rigs, prepare)
    return [ratio_figure(
        rigs,
        name="backlog",
        how=f"an epoch of {size.epoch_transactions} transactions with {size.backlog_pending} "
        "halves pending / the same with none",
        must=1.3,
        aim=1.1,
        parameters={"pending": size.backlog_pending, "transactions": size.epoch_transactions,
                    "rounds": size.epoch_rounds},
    )]  # fmt: skip
