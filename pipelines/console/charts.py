"""Charts of a lake's history as SVG: points only, the words around them are the template's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pipelines.health.history import BUCKETS, History
from pipelines.output import span

WIDTH: Final = 600
HEIGHT: Final = 100
_TOP: Final = 4

Points = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    `parts`: the points of each piece between gaps; `now`: its last value.
    """

    name: str
    parts: tuple[str, ...]
    now: str
    maximum: str


@dataclass(frozen=True)
class Chart:
    """Lines over the same time and the same height."""

    name: str
    title: str
    lines: tuple[Line, ...]
    maximum: str


def charts(history: History) -> list[Chart]:
    """Returns the overview's charts: lag in time and records, pending, rates, epoch times.

    Without an epoch the number of pending halves stays, and nothing lands or ends; how far behind
    the job was is not known then.
    """
    row_by_bucket = {row["bucket"]: row for row in history.buckets}
    rows = [row_by_bucket.get(bucket) for bucket in range(BUCKETS)]
    seconds = history.bucket_ms / 1000

    def values(name: str) -> Points:
        return [None if row is None else row[name] for row in rows]

    def rate(name: str) -> Points:
        return [0.0 if row is None else row[name] / seconds for row in rows]

    rates = {"landed": rate("landed"), "ended": rate("ended"), "given up": rate("given_up")}
    count = "{:.0f}".format
    times = {"longest": values("max_ms"), "median": values("p50_ms")}

    return [
        _chart("lag", "Lag of the oldest record", _span, {"lag": values("lag_ms")}),
        _chart("waiting", "Records waiting in Kafka", count, {"waiting": values("waiting")}),
        _chart("pending", "Pending halves", count, {"pending": _fill_forward(values("pending"))}),
        _chart("rates", "Transactions a second", "{:.3g}".format, rates),
        _chart("epoch-times", "Epoch times", _span, times),
    ]


def _fill_forward(values: Points) -> Points:
    filled: list[float | None] = []
    for value in values:
        filled.append(filled[-1] if value is None and filled else value)
    return filled


def _span(value: float) -> str:
    return span(round(value))


def _chart(
    name: str, title: str, format_value: Callable[[float], str], lines: dict[str, Points]
) -> Chart:
    known = {
        line: [value for value in values if value is not None] for line, values in lines.items()
    }
    maximum = max((max(values) for values in known.values() if values), default=0.0)

    drawn = tuple(
        Line(line, tuple(_polylines(values, maximum)), *_now_and_maximum(known[line], format_value))
        for line, values in lines.items()
    )
    return Chart(name, title, drawn, format_value(maximum))


def _now_and_maximum(
    known: Sequence[float], format_value: Callable[[float], str]
) -> tuple[str, str]:
    return (format_value(known[-1]), format_value(max(known))) if known else ("", "")


def _polylines(values: Points, maximum: float) -> list[str]:
    """Returns the points of each piece between gaps; a single bucket makes a short line."""
    parts: list[list[tuple[float, float]]] = []
    width = WIDTH / BUCKETS
    was_known = False

    for place, value in enumerate(values):
        if value is not None:
            y = HEIGHT - (HEIGHT - _TOP) * (value / maximum if maximum else 0)
            if not was_known:
                parts.append([(place * width, y)])
            parts[-1].append(((place + 1) * width, y))
        was_known = value is not None

    return [" ".join(f"{x:.1f},{y:.1f}" for x, y in points) for points in parts]
