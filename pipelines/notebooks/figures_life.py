"""The figures of notebooks 1 and 3: the life of one transaction, and of many around an instant."""

from __future__ import annotations

import datetime as dt
from typing import Final

import polars as pl
from matplotlib.dates import date2num

from pipelines.notebooks.figures import (
    BLACK,
    COLOURS,
    CYCLE,
    GREEN,
    GREY,
    PINK,
    RED,
    Picture,
    nothing,
    picture,
    time_axis,
)
from pipelines.notebooks.history import PointInTime

# Lanes from top to bottom; an event of another kind has a lane of its own below.
_LANES: Final = {
    "half": ("half stored", CYCLE[0]),
    "check": ("group asked", PINK),
    "operation": ("operation stored", CYCLE[1]),
    "conflict": ("without effect", GREY),
    "outcome": ("decided", GREEN),
    "copied": ("discard copied", RED),
    "delivered": ("delivered", BLACK),
}
_MOST_BARS = 40  # more bars are too thin to read


def life(events: pl.DataFrame, title: str) -> Picture:
    """Returns a figure of one transaction's events, a lane for each kind. Input: `tables.life`."""
    kinds = dict.fromkeys(events["kind"].to_list())
    order = [kind for kind in _LANES if kind in kinds]
    order += [kind for kind in kinds if kind not in _LANES]
    first = events["when"].to_list()[0]

    figure, (axes,) = picture(title, 1.4 + 0.35 * len(order))

    for lane, kind in enumerate(order):
        at = events.filter(pl.col("kind") == kind)["when"].to_list()
        colour = _LANES.get(kind, (kind, BLACK))[1]
        seconds = [(instant - first).total_seconds() for instant in at]
        axes.plot(seconds, [lane] * len(at), "o", color=colour, markersize=9)

        times = f", {len(at)} times" if len(at) > 1 else ""
        axes.annotate(
            f"{seconds[0]:.1f} s{times}",
            (seconds[0], lane),
            (0, 8),
            fontsize=8,
            ha="center",
            textcoords="offset points",
        )

    axes.set_yticks(range(len(order)), [_LANES.get(kind, (kind, ""))[0] for kind in order])
    axes.set_ylim(len(order) - 0.5, -0.8)
    axes.margins(x=0.05)
    axes.set_ylabel("what happened")
    axes.set_xlabel(f"seconds since the half was stored, {first:%Y-%m-%d %H:%M:%S} UTC")

    return figure


def outcomes_since(halves: pl.DataFrame, when: PointInTime, last_at: dt.datetime) -> Picture:
    """Returns a figure of the halves that were pending at an instant: their waits, and their ends.

    Input: `outcomes_since` of notebook 3; `last_at`: `epoch_at` of the newest epoch: bars of
    pending halves end there.
    """
    shown = halves.head(_MOST_BARS)
    title = f"Pending at {when}"
    if shown.is_empty():
        return nothing(title, "Nothing was pending.")

    if len(halves) > len(shown):
        title += f"\n(the {len(shown)} oldest of {len(halves)})"

    figure, (axes,) = picture(title, max(2.6, 1.6 + 0.22 * len(shown)))
    for place, (_, _, begun, ended, fate, *_) in enumerate(shown.rows()):
        left, right = date2num(begun), date2num(ended or last_at)
        axes.barh(place, right - left, left=left, color=COLOURS[fate], height=0.7)

    for fate in dict.fromkeys(shown["fate"].to_list()):
        axes.barh(0, 0, left=date2num(when.at), color=COLOURS[fate], label=fate)

    axes.axvline(
        date2num(when.epoch_at), color=BLACK, linewidth=1.5, label="the instant asked about"
    )

    names = [f"{half}  {group}" for half, group, *_ in shown.rows()]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_ylabel("half, producer group")

    axes.legend(
        title="what became of it", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False
    )
    time_axis(axes, "from stored to decided, UTC")
    return figure
