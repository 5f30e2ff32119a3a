"""The figure of notebook 5: how many messages each queue of each topic has."""

from __future__ import annotations

import itertools

import polars as pl

from pipelines.notebooks.figures import CYCLE, Picture, nothing, picture, stacked_bars

_MOST_QUEUES = len(CYCLE)  # one for each colour


def by_queue(queues: pl.DataFrame) -> Picture:
    """Returns a figure of each topic's messages, by queue.

    Input: columns `topic`, `queue_id`, `messages`.
    """
    title = "Delivered messages, by topic and queue"
    if queues.is_empty():
        return nothing(title, "Nothing was delivered yet.")

    numbers = sorted(set(queues["queue_id"].to_list()))
    if len(numbers) > _MOST_QUEUES:
        return nothing(title, f"{len(numbers)} queues: too many for a picture.")

    topics = list(dict.fromkeys(queues["topic"].to_list()))
    counts = dict(
        zip(queues.select("topic", "queue_id").rows(), queues["messages"].to_list(), strict=True)
    )
    parts = {f"queue {n}": [counts.get((topic, n), 0) for topic in topics] for n in numbers}

    figure, (axes,) = picture(title, 1.6 + 0.45 * len(topics))
    stacked_bars(axes, topics, parts, dict(zip(parts, itertools.cycle(CYCLE), strict=False)))
    axes.set(xlabel="messages", ylabel="topic")
    return figure


def copies(counts: pl.DataFrame) -> Picture:
    """Returns a figure of how many messages each queue has in the lake, and in two copies of it.

    Input: columns `queue_id`, and `lake`, `once`, `plain`: messages there.
    """
    title = "Messages of each queue, after a micro-batch ran twice"
    if counts.is_empty():
        return nothing(title, "Nothing was delivered yet.")

    names = ["in the lake", "append_once", "a plain append"]
    queues = [f"queue {number}" for number in counts["queue_id"]]
    if len(queues) > _MOST_QUEUES:
        return nothing(title, "Too many queues for a picture.")

    rows = counts.select("lake", "once", "plain").rows()
    parts = {queue: list(row) for queue, row in zip(queues, rows, strict=True)}
    figure, (axes,) = picture(title, 1.6 + 0.45 * len(names))
    stacked_bars(axes, names, parts, dict(zip(parts, itertools.cycle(CYCLE), strict=False)))
    axes.set(xlabel="messages")
    return figure
