"""What larger bodies cost: drains of 256 B, 2 KiB, 64 KiB and 1 MiB in turn, JSON and random."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.bodies import JSON, RANDOM
from bench.epoch_times import steps_s
from bench.figure import Figure
from bench.figures.drain import Drained, drained
from bench.sample_data import Mix
from bench.workbench import Workbench

_MIDDLE = 2_048
# Name and bytes of a body; a record of 1 MiB has its headers, too.
_SIZES = {"256 B": 256, "2 KiB": _MIDDLE, "64 KiB": 65_536, "1 MiB": 1_000_000}
_RANDOM_TOO = ("256 B", "2 KiB")
_Kind = tuple[str, str]


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between jobs that drain messages which differ in their bodies only."""
    kinds = [(name, JSON) for name in _SIZES] + [(name, RANDOM) for name in _RANDOM_TOO]
    drains: dict[_Kind, list[Drained]] = {kind: [] for kind in kinds}
    for _ in range(bench.size.body_rounds):
        for kind, found in drains.items():
            found.append(_drained(bench, *kind))
    return figures_of(drains)


def figures_of(drains: Mapping[_Kind, Sequence[Drained]]) -> list[Figure]:
    """Compare drains. Input: by kind, in the order of the rounds."""
    rates = {kind: [drain.halves / drain.seconds for drain in found]
             for kind, found in drains.items()}  # fmt: skip
    details = {kind: _details(found, rates[kind], _SIZES[kind[0]])
               for kind, found in drains.items()}  # fmt: skip
    figures = []
    for body in (JSON, RANDOM):
        kinds = [(name, body) for name in _RANDOM_TOO]
        figures.append(_figure(
            f"drain, 2 KiB, {body}", f"tx/s with 2-KiB bodies / with 256 B; bodies: {body}",
            _ratios(rates, *kinds), 0.45, 0.65, {" ".join(kind): details[kind] for kind in kinds},
        ))  # fmt: skip
    for name in ("64 KiB", "1 MiB"):
        kinds = [("2 KiB", JSON), (name, JSON)]
        larger = _SIZES[name] / _MIDDLE
        figures.append(_figure(
            f"drain, {name}", f"MB/s with bodies of {name} / with 2 KiB; bodies: {JSON}",
            [larger * ratio for ratio in _ratios(rates, *kinds)], 1.0, 2.0,
            {" ".join(kind): details[kind] for kind in kinds},
        ))  # fmt: skip
    return figures


def _drained(bench: Workbench, name: str, body: str) -> Drained:
    """Drain as many messages of 2 KiB as of 256 B, of larger ones as many bytes as of 2 KiB."""
    size, count = _SIZES[name], bench.size.body_transactions
    if size > _MIDDLE:
        count = max(1, count * _MIDDLE // size)
    mix = Mix(size, body) if size <= _MIDDLE else Mix(size, body, unanswered=0.0)
    found = drained(bench, "bodies", *bench.waiting(count, mix))
    bench.forget("bodies")
    return found


def _ratios(rates: Mapping[_Kind, Sequence[float]], below: _Kind, above: _Kind) -> list[float]:
    """Give, by round, the rate of one kind over that of another."""
    return [b / a for a, b in zip(rates[below], rates[above], strict=True)]


def _details(drains: Sequence[Drained], rates: Sequence[float], size: int) -> dict[str, Any]:
    rate, last = statistics.median(rates), drains[-1]
    used = [drain.a_transaction_us(drain.processor_s) for drain in drains]
    by_driver = [drain.a_transaction_us(drain.driver_s) for drain in drains]
    return {
        "transactions": last.halves,
        "tx_s": round(rate),
        "mb_s": round(rate * size / 1e6, 1),
        "processor_us_a_transaction": round(statistics.median(used), 1),
        "drivers_python_us_a_transaction": round(statistics.median(by_driver), 1),
        "resident_gb_max": round(max(drain.resident_bytes for drain in drains) / 1e9, 2),
        "epochs": len(last.times),
        "step_s": steps_s(last.times),
    }


def _figure(
    name: str, how: str, samples: list[float], must: float, aim: float, details: dict[str, Any]
) -> Figure:
    return Figure(
        name=name,
        value=statistics.median(samples),
        unit="ratio",
        how=f"{how}; drains in turn, the median of the rounds",
        must=must,
        aim=aim,
        samples=[round(ratio, 3) for ratio in samples],
        details=details,
        parameters={"rounds": len(samples)},
    )
