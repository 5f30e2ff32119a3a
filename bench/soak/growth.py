"""What grew: the mean of the last quarter of a soak over that of the second, of each measure.

Times are judged in multiples of what the reference took at the same look, and told in ms beside.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.figure import Figure, Plot
from bench.soak.look import Look

MUST = 1.05
QUARTERS = range(4)
_TIMES = "times the reference"
_POINTS = 3  # looks that a plotted point is the median of
Measure = Callable[[Look], float]
JUDGED: Mapping[str, tuple[str, Measure]] = {
    "bytes": ("MB", lambda look: (look.data_bytes.total() + look.log_bytes.total()) / 1e6),
    "data files": ("files", lambda look: look.data_files.total()),
    "log entries": ("files", lambda look: look.log_files.total()),
    "resident memory": ("MB", lambda look: look.resident_bytes / 1e6),
    "rows": ("rows", lambda look: look.rows.total()),
    "state": ("rows", lambda look: look.state_rows),
    "epoch, processor": (
        _TIMES,
        lambda look: look.spent.epoch_processor_s / look.reference.epoch_processor_s,
    ),
    "epoch, wall": (_TIMES, lambda look: look.spent.epoch_s / look.reference.epoch_s),
    "maintenance, wall": (_TIMES, lambda look: look.spent.upkeep_s / look.reference.upkeep_s),
    "start, processor": (_TIMES, lambda look: look.start_s / look.reference.epoch_processor_s),
}
TOLD: Mapping[str, tuple[str, Measure]] = {
    "epoch, processor in ms": ("ms", lambda look: look.spent.epoch_processor_s * 1e3),
    "reference, processor in ms": ("ms", lambda look: look.reference.epoch_processor_s * 1e3),
    "epoch, wall in ms": ("ms", lambda look: look.spent.epoch_s * 1e3),
    "maintenance, wall in ms": ("ms", lambda look: look.spent.upkeep_s * 1e3),
    "start, processor in ms": ("ms", lambda look: look.start_s * 1e3),
}


def quarters(looks: Sequence[Look], measure: Measure) -> list[float]:
    """Returns the mean of each quarter of the epochs.

    Errors: ValueError if there are fewer than four looks.
    """
    if len(looks) < len(QUARTERS):
        raise ValueError(f"{len(looks)} looks: a quarter has none")
    last = looks[-1].epoch
    parts: list[list[float]] = [[] for _ in QUARTERS]
    for look in looks:
        parts[len(QUARTERS) * (look.epoch - 1) // last].append(measure(look))
    return [statistics.mean(part) for part in parts]


def ratio(means: Sequence[float]) -> float:
    """Returns the last quarter over the second; 1 where both are 0."""
    if means[1] == 0:
        return 1.0 if means[3] == 0 else float("inf")
    return means[3] / means[1]


def figures(looks: Sequence[Look], parameters: dict[str, object]) -> list[Figure]:
    """Returns a figure of each measure, with its curve."""
    found = []

    for name, (unit, measure) in {**JUDGED, **TOLD}.items():
        means = quarters(looks, measure)
        found.append(
            Figure(
                name,
                ratio(means),
                "ratio",
                "mean of the last quarter / of the second",
                better="less",
                must=MUST if name in JUDGED else None,
                samples=[round(mean, 3) for mean in means],
                details={f"quarters, {unit}": ", ".join(f"{mean:,.2f}" for mean in means)},
                parameters=parameters,
                plots=[Plot(name, "epoch", unit, {name: curve(looks, measure)})],
            )
        )

    return found


def curve(looks: Sequence[Look], measure: Measure) -> list[tuple[Any, float]]:
    """Returns the points of a plot: medians of some looks, so that a curve can be read."""
    return [
        (looks[at].epoch, statistics.median(map(measure, looks[at : at + _POINTS])))
        for at in range(0, len(looks), _POINTS)
    ]


def by_table(looks: Sequence[Look]) -> dict[str, str]:
    """Returns in words, for each table, its second and its last quarter."""
    words = {
        "data_bytes": "bytes",
        "data_files": "files",
        "log_files": "entries of its log",
        "rows": "rows",
    }

    found = {}

    for table in sorted(looks[-1].data_files):
        told = []
        for what, unit in words.items():
            means = quarters(looks, lambda look, what=what, t=table: getattr(look, what)[t])  # type: ignore[misc]
            told.append(f"{means[1]:,.0f} to {means[3]:,.0f} {unit}")

        found[f"`{table}`" if table else "beside the tables"] = ", ".join(told)
    return found
