"""What signatures cost: the same signed records drained by a job that verifies them, or not."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.figure import Figure
from bench.figures.drain import Drained, drained
from bench.job_process import BenchError
from bench.sample_data import GROUP, KEY, Mix
from bench.workbench import Workbench
from storage.lake.lake import Lake


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between a job without keys and one that has the group's."""
    topics, written = bench.waiting(bench.size.body_transactions, Mix(is_signed=True))
    secret = bench.folder / "key"
    secret.write_bytes(KEY.secret)
    keys = {GROUP: {f"{KEY.id}_file": str(secret)}}
    found: dict[str, list[Drained]] = {"without": [], "with": []}
    for _ in range(bench.size.body_rounds):
        for name, security in (("without", {}), ("with", {"keys": keys})):
            found[name].append(drained(bench, name, topics, written, security=security))
            _check(bench, name, True if security else None)
            bench.forget(name)
    return [figure_of(found["without"], found["with"])]


def _check(bench: Workbench, lake: str, expected: bool | None) -> None:
    """Look what the job found. Errors: BenchError."""
    rows = Lake(bench.settings(lake).lake.place()).read("op", ["is_signed"])
    found = set(rows["is_signed"].to_pylist())
    if found != {expected}:
        raise BenchError(f"{lake}: is_signed of the operations is {found}, not {expected} alone")


def figure_of(without: Sequence[Drained], verified: Sequence[Drained]) -> Figure:
    """Compare drains, in the order of the rounds."""
    ratios = [with_.seconds / other.seconds for other, with_ in zip(without, verified, strict=True)]
    return Figure(
        name="drain, signed / not",
        value=statistics.median(ratios),
        unit="ratio",
        how="time of a drain in which every operation's signature is verified / of the same "
        "records without keys; in turn, the median of the rounds",
        better="less",
        must=1.1,
        aim=1.03,
        samples=[round(ratio, 3) for ratio in ratios],
        details={
            name: {
                "tx_s": [round(drain.halves / drain.seconds) for drain in drains],
                "drivers_python_us_a_transaction": [
                    drain.a_transaction_us(drain.driver_s) for drain in drains
                ],
            }
            for name, drains in (("without", without), ("with", verified))
        },
        parameters={"transactions": verified[0].halves, "rounds": len(verified),
                    "ends_per_operation": Mix().ends_per_operation},
    )  # fmt: skip
