"""How fast an earlier commit's job drains the same records, and what processor time it takes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.figure import Figure
from bench.figures.drain import Drained, drained
from bench.job_process import BenchError
from bench.sample_data import Mix
from bench.workbench import Workbench

_SIZES = {"256 B": 256, "2 KiB": 2_048}
# Must and aim.
_RATE = {"256 B": (1.0, 1.5), "2 KiB": (None, None)}
_PROCESSOR = {"256 B": (1.1, 0.9), "2 KiB": (1.0, 0.6)}


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between the job before and this one, for small and for larger bodies."""
    if bench.before is None:
        raise BenchError("name the commit to compare with: --before")
    found: dict[str, dict[str, list[Drained]]] = {n: {"before": [], "after": []} for n in _SIZES}
    for _ in range(bench.size.body_rounds):
        for name, drains in found.items():
            topics, written = bench.waiting(_transactions(bench, name), Mix(_SIZES[name]))
            for when, checkout in (("before", bench.before.folder), ("after", None)):
                drains[when].append(drained(bench, when, topics, written, checkout=checkout))
                bench.forget(when)
    return figures_of(found, bench.before.commit)


def _transactions(bench: Workbench, name: str) -> int:
    """Return how many are drained: of small bodies so many that a start is a small part of it."""
    is_small = _SIZES[name] == 256
    return bench.size.drain_transactions if is_small else bench.size.body_transactions


def figures_of(found: Mapping[str, Mapping[str, Sequence[Drained]]], commit: str) -> list[Figure]:
    """Compare drains. Input: by size, then `before` and `after`, in the order of the rounds."""
    figures = []
    for name, drains in found.items():
        parameters = {"before": commit, "transactions": drains["after"][0].halves,
                      "rounds": len(drains["after"])}  # fmt: skip
        details = {when: _details(of_one) for when, of_one in drains.items()}
        pairs = list(zip(drains["before"], drains["after"], strict=True))
        rates = [before.seconds / after.seconds for before, after in pairs]
        used = [after.processor_s / before.processor_s for before, after in pairs]
        figures += [
            _figure(f"drain, {name}, after / before", f"tx/s with bodies of {name}, now / before",
                    "more", rates, _RATE[name], details, parameters),
            _figure(f"processor, {name}, after / before",
                    f"processor time of the job's processes in the drain, {name}, now / before",
                    "less", used, _PROCESSOR[name], {}, parameters),
        ]  # fmt: skip
    return figures


def _details(drains: Sequence[Drained]) -> dict[str, Any]:
    return {
        "tx_s": [round(drain.halves / drain.seconds) for drain in drains],
        "processor_us_a_transaction": [d.a_transaction_us(d.processor_s) for d in drains],
        "drivers_python_us_a_transaction": [d.a_transaction_us(d.driver_s) for d in drains],
        "resident_gb_max": [round(drain.resident_bytes / 1e9, 2) for drain in drains],
        "epochs": len(drains[-1].times),
    }


def _figure(
    name: str, how: str, better: Any, samples: list[float],
    wanted: tuple[float | None, float | None], details: dict[str, Any], parameters: dict[str, Any],
) -> Figure:  # fmt: skip
    return Figure(
        name=name,
        value=statistics.median(samples),
        unit="ratio",
        how=f"{how}; in turn, the median of the rounds; the same records of JSON bodies",
        better=better,
        must=wanted[0],
        aim=wanted[1],
        samples=[round(ratio, 3) for ratio in samples],
        details=details,
        parameters=parameters,
    )
