"""Curves of a lake's history as SVG: points only, the words around them are the template's."""

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
    most: str


@dataclass(frozen=True)
class Chart:
    """Lines over the same time and the same height."""

    name: str
    title: str
    lines: tuple[Line, ...]
    most: str


def charts(history: History) -> list[Chart]:
    """Returns what the overview shows: lag in time and records, pending, rates, epoch times.

    Without an epoch nothing is pending that was not, and nothing lands or ends; how far behind the
    job was is not known then.
    """
    at = {row["bucket"]: row for row in history.buckets}
    rows = [at.get(bucket) for bucket in range(BUCKETS)]
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
    held: list[float | None] = []
    for value in values:
        held.append(held[-1] if value is None and held else value)
    return held


def _span(value: float) -> str:
    return span(round(value))


def _chart(
    name: str, title: str, format_value: Callable[[float], str], lines: dict[str, Points]
) -> Chart:
    known = {line: [one for one in values if one is not None] for line, values in lines.items()}
    most = max((one for found in known.values() for one in found), default=0.0)
    drawn = tuple(
        Line(line, tuple(_polylines(values, most)), *_said(known[line], format_value))
        for line, values in lines.items()
    )
    return Chart(name, title, drawn, format_value(most))


def _said(known: Sequence[float], format_value: Callable[[float], str]) -> tuple[str, str]:
    return (format_value(known[-1]), format_value(max(known))) if known else ("", "")


def _polylines(values: Points, most: float) -> list[str]:
    """Returns the points of each piece between gaps; of one bucket alone that is a short line."""
    parts: list[list[tuple[float, float]]] = []
    width, was_known = WIDTH / BUCKETS, False
    for place, value in enumerate(values):
        if value is not None:
            y = HEIGHT - (HEIGHT - _TOP) * (value / most if most else 0)
            if not was_known:
                parts.append([(place * width, y)])
            parts[-1].append(((place + 1) * width, y))
        was_known = value is not None
    return [" ".join(f"{x:.1f},{y:.1f}" for x, y in points) for points in parts]
