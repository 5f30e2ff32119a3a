"""Cut a log into epochs, and put epochs together again."""

from __future__ import annotations

import itertools
import random
from typing import Any

Row = dict[str, Any]
KINDS = ("halves", "operations", "schedules", "commands")


def merged(world: Row, count: int) -> Row:
    """Return the same log in `count` epochs; each has the T and the queues of its last one."""
    epochs = world["epochs"]
    ends = [round(len(epochs) * number / count) for number in range(count + 1)]
    parts = [epochs[start:end] for start, end in itertools.pairwise(ends)]
    return {
        **world,
        "epochs": [
            {**part[-1], **{kind: [row for e in part for row in e[kind]] for kind in KINDS}}
            for part in parts
        ],
    }


def cut(
    chance: random.Random,
    epochs: list[Row],
    queue_id: int,
    halves: list[Row],
    operations: list[Row],
    *,
    early: bool,
) -> None:
    """Spread one queue's log over the epochs, its two topics independently of each other."""
    half_cuts = _cuts(chance, len(halves), len(epochs))
    op_cuts = _cuts(chance, len(operations), len(epochs))
    half_end = landed = done = 0

    for number, epoch in enumerate(epochs):
        now = half_cuts[number]
        op_now = op_cuts[number]
        if not early:
            now = max(now, _halves_needed(halves, operations[:op_now]))
        now = max(now, landed)

        epoch["halves"] += halves[landed:now]
        epoch["operations"] += operations[done:op_now]

        low = halves[now - 1]["queue_offset"] + 1 if now else 0
        high = halves[now]["queue_offset"] if now < len(halves) else low
        half_end = max(half_end, chance.choice((low, low, high)))

        landed, done = now, op_now
        epoch["queues"].append({"queue_id": queue_id, "half_end": half_end})


def _cuts(chance: random.Random, length: int, count: int) -> list[int]:
    return [*sorted(chance.randint(0, length) for _ in range(count - 1)), length]


def _halves_needed(halves: list[Row], operations: list[Row]) -> int:
    named = {offset for row in operations for offset in row["half_offsets"] or ()}
    return sum(half["queue_offset"] <= max(named, default=-1) for half in halves)
