"""Charts of a lake's history as SVG: points and texts, the words around them are the template's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pipelines.health.history import BUCKETS, History
from pipelines.output import instant, number_text, span

WIDTH: Final = 600
HEIGHT: Final = 100
_TOP: Final = 4
_DAY_MS: Final = 86_400_000

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
class Mark:
    """A place on the axis of time, with its text: the values of a bucket, or a restart."""

    x: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Lines over the same time and the same height.

    `ticks`: the axis of values, from its top to its foot, some of them empty; `values`: of each
    bucket that is known; `changes`: restarts and take-overs.
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    maximum: str
    ticks: tuple[str, str, str]
    values: tuple[Mark, ...]
    changes: tuple[Mark, ...]


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
    times = {"longest": values("max_ms"), "median": values("p50_ms")}
    chart = partial(_chart, history)

    return [
        chart("lag", "Lag of the oldest record", _span, {"lag": values("lag_ms")}),
        chart("waiting", "Records waiting in Kafka", number_text, {"waiting": values("waiting")}),
        chart(
            "pending", "Pending halves", number_text, {"pending": _fill_forward(values("pending"))}
        ),
        chart("rates", "Transactions a second", number_text, rates),
        chart("epoch-times", "Epoch times", _span, times),
    ]


def _fill_forward(values: Points) -> Points:
    filled: list[float | None] = []
    for value in values:
        filled.append(filled[-1] if value is None and filled else value)
    return filled


def _span(value: float) -> str:
    return span(round(value))


def _chart(
    history: History,
    name: str,
    title: str,
    format_value: Callable[[float], str],
    lines: dict[str, Points],
) -> Chart:
    known = {
        line: [value for value in values if value is not None] for line, values in lines.items()
    }
    maximum = max((max(values) for values in known.values() if values), default=0.0)

    drawn = tuple(
        Line(line, tuple(_polylines(values, maximum)), *_now_and_maximum(known[line], format_value))
        for line, values in lines.items()
    )
    return Chart(
        name,
        title,
        drawn,
        format_value(maximum),
        _ticks(maximum, format_value),
        tuple(_bucket_marks(history, format_value, lines)),
        tuple(_change_marks(history)),
    )


def _ticks(maximum: float, format_value: Callable[[float], str]) -> tuple[str, str, str]:
    """Returns the axis of values, from its top to its foot; a place that would say 0 is empty."""
    zero = format_value(0)
    top, middle = (format_value(value) for value in (maximum, maximum / 2))
    return ("" if top == zero else top, "" if middle in (zero, top) else middle, "0")


def _bucket_marks(
    history: History, format_value: Callable[[float], str], lines: dict[str, Points]
) -> Iterator[Mark]:
    """Returns the values of each bucket that had an epoch."""
    for bucket in sorted(row["bucket"] for row in history.buckets):
        texts = [
            f"{name} {format_value(value)}"
            for name, points in lines.items()
            if (value := points[bucket]) is not None
        ]
        at = history.from_at + bucket * history.bucket_ms
        yield Mark(bucket * WIDTH / BUCKETS, f"{clock(at, history)}: {', '.join(texts)}")


def _change_marks(history: History) -> Iterator[Mark]:
    length_ms = max(1, history.until_at - history.from_at)
    for row in history.changes:
        x = WIDTH * (row["changed_at"] - history.from_at) / length_ms
        yield Mark(x, f"{clock(row['changed_at'], history)}: {row['owner']} took over")


def clock(at: int, history: History) -> str:
    """Returns an instant as it is written beside a chart, UTC: with its day over a long time."""
    text = instant(at)
    is_short = history.until_at - history.from_at <= _DAY_MS
    return text[11:19] if is_short else f"{text[5:10]} {text[11:16]}"


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
