"""Make a failing world small: leave out what it fails without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.log_splits import KINDS

Row = dict[str, Any]
RUNS_MAX = 400


def shrink(world: Row, difference: Callable[[Row], Row | None]) -> tuple[Row, Row]:
    """Leave out rows, then epochs, greedily, while a frame of the first difference still differs.

    Output: the small world and its difference.
    """
    found = difference(world)
    assert found is not None, "the world does not fail"
    frames = found.keys() - {"epoch"}
    runs = 0

    def fails(smaller: Row) -> Row | None:
        nonlocal runs
        runs += 1
        different = difference(smaller) if runs <= RUNS_MAX else None
        return different if different and frames & different.keys() else None

    world = {**world, "epochs": world["epochs"][: found["epoch"] + 1]}
    kept = _places(world)
    size = max(1, len(kept) // 2)
    while True:
        start = 0
        before = len(kept)
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            different = fails(_with_rows(world, fewer))
            if different:
                kept, found = fewer, different
            else:
                start += size
        if size == 1 and len(kept) == before:
            break
        size = max(1, size // 2)
    world = _with_rows(world, kept)
    for number in reversed(range(len(world["epochs"]))):
        epochs = world["epochs"][:number] + world["epochs"][number + 1 :]
        is_empty = not any(world["epochs"][number][kind] for kind in KINDS)
        different = fails({**world, "epochs": epochs}) if is_empty else None
        if different:
            world = {**world, "epochs": epochs}
            found = different
    return world, found


def describe(world: Row, found: Row) -> str:
    """Write a world down so that it can be read, and pasted as a vector."""
    lines = [f"seed {world['seed']}", f"parameters {json.dumps(world['parameters'])}"]
    for number, epoch in enumerate(world["epochs"]):
        lines.append(f"epoch {number} at {epoch['at']}")
        lines += [
            f"  {kind}: {json.dumps(row)}" for kind in ("queues", *KINDS) for row in epoch[kind]
        ]
    return "\n".join([*lines, "differs:", json.dumps(found, indent=1)])


def _places(world: Row) -> list[tuple[int, int, str, int]]:
    """Return each row's place, one queue's rows beside each other."""
    return sorted(
        (row.get("queue_id", -1), number, kind, index)
        for number, epoch in enumerate(world["epochs"])
        for kind in KINDS
        for index, row in enumerate(epoch[kind])
    )


def _with_rows(world: Row, places: list[tuple[int, int, str, int]]) -> Row:
    wanted = {place[1:] for place in places}
    queues = {place[0] for place in places}
    epochs = []
    for number, epoch in enumerate(world["epochs"]):
        rows = {
            kind: [row for index, row in enumerate(epoch[kind]) if (number, kind, index) in wanted]
            for kind in KINDS
        }
        known = [row for row in epoch["queues"] if row["queue_id"] in queues]
        epochs.append({**epoch, **rows, "queues": known})
    return {**world, "epochs": epochs}
