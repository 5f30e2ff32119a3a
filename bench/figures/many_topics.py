"""What an epoch costs more when its messages go to many real topics."""

from __future__ import annotations

from bench.epoch_rig import TimedRig, ratio_figure, take_turns, timed_rig
from bench.figure import Figure
from bench.sample_data import Mix
from bench.workbench import Workbench


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between a lake with one real topic and one with many."""
    size = bench.size
    topics = tuple(f"bench-topic-{number}" for number in range(size.topics))
    mixes = {
        "one topic": Mix(unanswered=0.0),
        "many topics": Mix(topics=topics, unanswered=0.0),
    }
    lakes = {"one topic": "topics-one", "many topics": "topics-many"}
    rigs = {name: timed_rig(bench, lake) for name, lake in lakes.items()}

    def prepare(name: str, rig: TimedRig) -> None:
        rig.writer.transactions(size.epoch_transactions, mixes[name])

    take_turns(bench, rigs, prepare)
    return [ratio_figure(
        rigs,
        name="many topics",
        how=f"an epoch of {size.epoch_transactions} transactions over {size.topics} real topics / "
        "over one",
        must=3.0,
        aim=2.0,
        parameters={"topics": size.topics, "transactions": size.epoch_transactions,
                    "rounds": size.epoch_rounds},
    )]  # fmt: skip
