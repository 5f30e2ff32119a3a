"""The common parts of all figures: form, colours, time on an axis, a sentence for an empty figure.

Figures are drawn without pyplot: nothing global changes, and a notebook shows the value of a cell.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Colours that colour-blind people can tell apart (Okabe and Ito); one meaning, one colour.
GREEN, SKY, RED, ORANGE, PINK, GREY, BLACK = (
    "#009E73",
    "#56B4E9",
    "#D55E00",
    "#E69F00",
    "#CC79A7",
    "#999999",
    "#333333",
)
COLOURS: Final = {
    "COMMITTED": GREEN,
    "ROLLED_BACK": SKY,
    "DISCARDED": RED,
    "still pending": ORANGE,
    "COMMIT": GREEN,
    "ROLLBACK": SKY,
    "UNKNOWN": PINK,
    "no answer": GREY,
    "not acknowledged": BLACK,
}
CYCLE: Final = ("#0072B2", ORANGE, GREEN, PINK, SKY, RED, "#F0E442", BLACK)
_WIDTH_IN = 9.0
_DPI = 100


class Picture(Figure):
    """A figure that a notebook shows as PNG when it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def picture(
    title: str, height_in: float = 3.4, rows: int = 1, *, is_one_axis: bool = True
) -> tuple[Picture, list[Axes]]:
    """Returns a figure with its title and so many plots, one above the other, with one x axis."""
    figure = Picture(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    axes = figure.subplots(rows, 1, sharex=is_one_axis, squeeze=False)[:, 0].tolist()
    for plot in axes:
        plot.spines[["top", "right"]].set_visible(False)
        plot.grid(axis="x", color="#dddddd", linewidth=0.6)
        plot.set_axisbelow(True)
    return figure, axes


def nothing(title: str, sentence: str) -> Picture:
    """Returns a figure that says why there is nothing to draw."""
    figure, (axes,) = picture(title, 1.2)
    axes.axis("off")
    axes.text(0.0, 0.5, sentence, fontsize=11, transform=axes.transAxes, va="center")
    return figure


def time_axis(axes: Axes, label: str = "time, UTC") -> None:
    """Makes an axis show instants briefly."""
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel(label)


def whole_numbers(axes: Axes, which: str = "y") -> None:
    """Makes an axis count in whole numbers, from zero."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(integer=True))
    if which == "y":
        axes.set_ylim(bottom=0)
    else:
        axes.set_xlim(left=0)


def stacked_bars(
    axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[int]], colours: Mapping[str, str]
) -> None:
    """Draws a bar for each name, put together from parts, with the number in each part."""
    left = [0] * len(names)
    maximum = max(map(sum, zip(*parts.values(), strict=True)), default=0)
    for part, counts in parts.items():
        bars = axes.barh(names, counts, left=left, label=part, color=colours[part], height=0.6)
        wide = [str(count) if count >= maximum / 25 else "" for count in counts]
        axes.bar_label(bars, wide, label_type="center", color="white", fontsize=9)
        left = [before + count for before, count in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.margins(y=0.05 if len(names) > 1 else 0.5)
    whole_numbers(axes, "x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
