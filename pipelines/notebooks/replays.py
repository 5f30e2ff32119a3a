"""Notebook 4: whether history is what the rules make of it, and what other parameters make."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow.compute as pc

from pipelines.notebooks.figures import (
    CYCLE,
    GREY,
    Picture,
    nothing,
    picture,
    whole_numbers,
)
from pipelines.notebooks.open_lake import OpenLake
from pipelines.replay import Verified, WhatIf
from txlake._counted import counted

# Parameters for `what_if`: how often, how long, how many.
_ASKED_ABOUT = (
    "transaction_timeout_ms",
    "check_interval_ms",
    "check_max",
    "half_retention_ms",
    "check_rate_max",
    "late_end_policy",
)
_BARS = (("history", -0.2, GREY, ""), ("what if", 0.2, CYCLE[0], "what_if_"))


def verdict(verified: Verified) -> str:
    """Returns one sentence that says what a verification found."""
    if verified.is_equal:
        result = "every row is there, bit for bit, and no other"
    else:
        result = counted(pc.sum(verified.compared["differences"]).as_py(), "difference")
    return (
        f"{counted(verified.transactions, 'transaction')} of epochs {verified.first_epoch} to "
        f"{verified.last_epoch}, run again in {verified.seconds:.1f} s: {result}"
    )


def parameters(lake: OpenLake) -> pl.DataFrame:
    """Returns the parameters in force at the newest epoch that a question can change."""
    rows = [(name, str(lake.last.parameters[name])) for name in _ASKED_ABOUT]
    return pl.DataFrame(rows, schema=["parameter", "in force"], orient="row")


def numbers(answer: WhatIf) -> pl.DataFrame:
    """Returns the counts of history beside those that other parameters would have given."""
    return pl.DataFrame(answer.numbers).with_columns(
        difference=pl.col("what_if").cast(pl.Int64) - pl.col("history").cast(pl.Int64)
    )


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
