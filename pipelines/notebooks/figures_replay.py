"""The figure of notebook 4. Input: the groups of a what-if."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from pipelines.notebooks.figures import (
    CYCLE,
    GREY,
    Picture,
    nothing,
    picture,
    whole_numbers,
)

_BARS = (("history", -0.2, GREY, ""), ("what if", 0.2, CYCLE[0], "what_if_"))


def groups(compared: pl.DataFrame, question: Mapping[str, object]) -> Picture:
    """Returns a figure of each group's checks and discards, in history and under a question."""
    title = f"What if {', '.join(f'{name} = {value}' for name, value in question.items())}?"
    if compared.is_empty():
        return nothing(title, "No group was asked, and none would have been.")
    figure, plots = picture(title, 2.4 + 0.9 * len(compared), rows=2, is_one_axis=False)
    places = range(len(compared))
    for axes, column, label in zip(
        plots, ("checks", "discards"), ("checks (attempts to ask)", "halves given up"), strict=True
    ):
        for name, shift, colour, prefix in _BARS:
            counts = compared[prefix + column].to_list()
            at = [place + shift for place in places]
            bars = axes.barh(at, counts, height=0.36, color=colour, label=name)
            axes.bar_label(bars, padding=3, fontsize=9)
        axes.set_yticks(places, compared["producer_group"].to_list())
        axes.invert_yaxis()
        axes.set(xlabel=label, ylabel="producer group")
        axes.margins(x=0.08)
        whole_numbers(axes, "x")
    plots[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure
