"""What records that cannot be read cost: the same transactions drained with a tenth of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.figure import Figure
from bench.figures.drain import Drained, drained
from bench.job_process import BenchError
from bench.sample_data import Mix, Written
from bench.workbench import Workbench
from storage.lake.lake import Lake
from storage.wire.record_kinds import HALF, OP, SCHEDULE

SHARE = 0.1
_MIXES = {"without": Mix(), "with": Mix(garbage=SHARE)}


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between topics of good transactions alone and such with garbage among them."""
    waiting = {
        name: bench.waiting(bench.size.body_transactions, mix) for name, mix in _MIXES.items()
    }
    found: dict[str, list[Drained]] = {name: [] for name in _MIXES}
    for _ in range(bench.size.body_rounds):
        for name, (topics, written) in waiting.items():
            found[name].append(drained(bench, name, topics, written))
            _check(bench, name, written)
            bench.forget(name)
    return [figure_of(found, {name: written for name, (_, written) in waiting.items()})]


def _check(bench: Workbench, name: str, written: Written) -> None:
    """Look whether each record that cannot be read is a row that says so. Errors: BenchError."""
    lake = Lake(bench.settings(name).lake.place())
    rows = 0
    for kind in (HALF, OP, SCHEDULE):
        errors = lake.read(kind, ["error"])["error"]
        rows += len(errors) - errors.null_count
    if rows != written.unreadable:
        raise BenchError(f"{name}: {rows} rows have a reason, {written.unreadable} were written so")


def figure_of(found: Mapping[str, Sequence[Drained]], written: Mapping[str, Written]) -> Figure:
    """Compare drains, in the order of the rounds."""
    rates = {
        name: [written[name].records / drain.seconds for drain in drains]
        for name, drains in found.items()
    }
    ratios = [with_ / none for none, with_ in zip(rates["without"], rates["with"], strict=True)]
    return Figure(
        name="drain, 10 % garbage / none",
        value=statistics.median(ratios),
        unit="ratio",
        how="records a second of a drain in which a tenth of all records cannot be read / of the "
        "same good transactions alone; in turn, the median of the rounds",
        must=0.8,
        aim=1.0,
        samples=[round(ratio, 3) for ratio in ratios],
        details={
            name: {
                "records_s": [round(rate) for rate in rates[name]],
                "good_records_s": [
                    round(rate * (1 - written[name].unreadable / written[name].records))
                    for rate in rates[name]
                ],
                "processor_us_a_record": [
                    round(drain.processor_s / written[name].records * 1e6, 2)
                    for drain in found[name]
                ],
            }
            for name in found
        },
        parameters={name: vars(one) for name, one in written.items()},
    )
