"""The figures of notebook 2. Input: the frames of its queries."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter

import polars as pl

from pipelines.notebooks.figures import (
    COLOURS,
    CYCLE,
    GREY,
    Picture,
    nothing,
    picture,
    stacked_bars,
    time_axis,
    whole_numbers,
)

ANSWERS = ("COMMIT", "ROLLBACK", "UNKNOWN", "no answer", "not acknowledged")
# A second end with the same decision: a repetition, without effect.
HARMLESS = "duplicate_end"

_AGES = (
    (1, "under 1 s"),
    (10, "1 to 10 s"),
    (60, "10 to 60 s"),
    (600, "1 to 10 min"),
    (3600, "10 to 60 min"),
    (86_400, "1 to 24 h"),
    (float("inf"), "over a day"),
)
_BAR_IN = 0.45  # height of a bar


def pending_over_time(epochs: pl.DataFrame) -> Picture:
    """Returns a figure of how many halves waited after each epoch, and how long the oldest had."""
    figure, (count, oldest) = picture("Halves that waited for their end", 4.6, rows=2)
    at = epochs["epoch_at"].to_list()
    count.step(at, epochs["pending"].to_list(), where="post", color=CYCLE[0])
    count.fill_between(at, epochs["pending"].to_list(), step="post", color=CYCLE[0], alpha=0.15)
    count.set_ylabel("pending halves")
    whole_numbers(count)
    oldest.plot(at, epochs["oldest_s"].to_list(), ".-", color=CYCLE[5])
    oldest.set_ylabel("age of the oldest, s")
    oldest.set_ylim(bottom=0)
    time_axis(oldest, "instant of the epoch, UTC")
    return figure


def pending_ages(pending: pl.DataFrame, when: object) -> Picture:
    """Returns a figure of how long the pending halves have waited, by producer group."""
    title = f"How long pending halves have waited\n{when}"
    if pending.is_empty():
        return nothing(title, "Nothing was pending.")

    figure, (axes,) = picture(title)
    groups = sorted(set(pending["producer_group"].to_list()))
    mosts, names = zip(*_AGES, strict=True)
    bottom = [0] * len(names)

    for group, colour in zip(groups, itertools.cycle(CYCLE), strict=False):
        waits = pending.filter(pl.col("producer_group") == group)["waits_s"].to_list()
        ages = Counter(bisect_right(mosts, wait) for wait in waits)
        counts = [ages[place] for place in range(len(names))]
        axes.bar(names, counts, bottom=bottom, label=group, color=colour, width=0.7)
        bottom = [before + count for before, count in zip(bottom, counts, strict=True)]

    axes.grid(visible=False, axis="x")
    axes.set(xlabel="time since the half was stored", ylabel="pending halves")
    axes.margins(y=0.1)
    whole_numbers(axes)

    axes.legend(title="producer group", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def waits_by_end(waits: pl.DataFrame) -> Picture:
    """Returns a figure of the share of halves that had ended, over time, for each kind of end."""
    title = "How long halves waited for their end"
    if waits.is_empty():
        return nothing(title, "No half has ended yet.")

    figure, (axes,) = picture(title, 4.0)
    styles = itertools.cycle(("-", "--", ":", "-."))
    ends = waits.group_by("outcome", "cause").len("halves").sort("halves", descending=True)

    for (outcome, cause, halves), style in zip(ends.rows(), styles, strict=False):
        is_end = (pl.col("outcome") == outcome) & (pl.col("cause") == cause)
        seconds = [max(wait, 0.001) for wait in waits.filter(is_end)["waited_s"].to_list()]
        label = f"{outcome}, {cause} ({halves})"
        axes.ecdf(seconds, label=label, color=COLOURS[outcome], linestyle=style, linewidth=2)

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set(xlabel="seconds from stored to decided (log scale)", ylabel="share of these halves")

    axes.legend(
        title="outcome, cause (halves)", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False
    )
    return figure


def answers_by_group(answers: pl.DataFrame) -> Picture:
    """Returns a figure of what each producer group answered to its checks."""
    title = "What producer groups answered when they were asked"
    if answers.is_empty():
        return nothing(title, "No group was asked: every transaction ended in time.")
    figure, (axes,) = picture(title, 1.5 + _BAR_IN * len(answers))
    parts = {name: answers[name].to_list() for name in ANSWERS if answers[name].sum()}
    stacked_bars(axes, answers["producer_group"].to_list(), parts, COLOURS)
    axes.set(xlabel="checks (attempts to ask)", ylabel="producer group")
    return figure


def conflicts_by_group(conflicts: pl.DataFrame) -> Picture:
    """Returns a figure of the operations without effect, by the group that sent them and reason."""
    title = "Operations without effect, by the group that sent them"
    if conflicts.is_empty():
        return nothing(title, "There is no conflict: every operation had its effect.")

    groups = list(dict.fromkeys(conflicts["producer_group"].to_list()))
    reasons = list(dict.fromkeys(conflicts["reason"].to_list()))
    counts = {(group, reason): n for group, reason, _, n in conflicts.rows()}
    parts = {reason: [counts.get((group, reason), 0) for group in groups] for reason in reasons}
    colours = dict(zip(reasons, itertools.cycle(CYCLE), strict=False)) | {HARMLESS: GREY}

    figure, (axes,) = picture(title, 1.8 + _BAR_IN * max(len(groups), len(reasons) // 2))
    stacked_bars(axes, groups, parts, colours)
    axes.set(xlabel=f"conflicts ({HARMLESS} is harmless)", ylabel="producer group")
    return figure
