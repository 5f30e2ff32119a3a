"""How far a replay is: records done, of how many."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc

from pipelines.replay.source import Chunk
from storage.lake.epochs import PLANNED, Place, plan_of
from storage.lake.lake import Lake
from storage.wire.kinds import HALF

Told = Callable[[int, int], None]  # records done, records in all


def told(lake: Lake, first: int, last: int, progress: Told | None) -> Callable[[int], None]:
    """Returns a function that adds up the records of each epoch and reports to `progress`."""
    if progress is None:
        return lambda _: None
    total, done = record_count(lake, first, last), 0

    def add(records: int) -> None:
        nonlocal done
        done += records
        progress(done, total)

    return add


def record_count(lake: Lake, first: int, last: int) -> int:
    """Returns the number of records that some epochs landed, from the first plan and the last."""
    ends = pc.field("epoch").isin([first, last]) & (pc.field("state") == PLANNED)
    plans = {row["epoch"]: plan_of(row) for row in lake.read("epochs", where=ends).to_pylist()}
    begins: dict[Place, int] = {r.place: r.from_offset for r in plans[first].ranges}
    landed = plans[last].landed()
    return sum(end - begins.get(place, 0) for place, end in landed.items())


def transactions(chunk: Chunk) -> int:
    """Returns the number of halves of a chunk."""
    return sum(rows.num_rows for rows in chunk.landed[HALF].values())
