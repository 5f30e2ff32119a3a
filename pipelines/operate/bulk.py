"""The targets of a command about many things: the oldest first, each unit once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from pipelines.explain.rows import Row, has_keys
from pipelines.health.dead_letters import read_dead
from pipelines.health.transactions import Filters, list_pending, state_of
from storage.lake.lake import Lake
from txlake.protocol import RecordTarget, Target, UndeliverableTarget, read_target


def pending_targets(lake: Lake, filters: Filters) -> list[RecordTarget]:
    """Returns the halves that wait for their end, one of each set, the oldest first."""
    targets = [read_target(row["target"]) for row in list_pending(lake, filters)[0]]
    return _one_of_each_set(lake, targets)


def dead_targets(lake: Lake, filters: Filters) -> list[Target]:
    """Returns the targets that `dead resume` can be about, one half of each set, the oldest first.

    `since_at` and `until_at` are compared with the time since which a target is dead.
    """
    return _sort_targets(lake, [row for row in read_dead(lake) if _matches(row, filters)])


def dead_of(lake: Lake, transaction_id: str) -> list[Target]:
    """Returns the targets of a transaction id that `dead resume` can be about, one of each set."""
    return _sort_targets(
        lake, [row for row in read_dead(lake) if row["transaction_id"] == transaction_id]
    )


def _sort_targets(lake: Lake, rows: Sequence[Row]) -> list[Target]:
    targets = [read_target(row["target"]) for row in sorted(rows, key=lambda row: row["since"])]
    halves = set(_one_of_each_set(lake, targets))
    return [
        target for target in targets if isinstance(target, UndeliverableTarget) or target in halves
    ]


def _matches(row: Row, filters: Filters) -> bool:
    return (
        filters.group in (None, row["producer_group"])
        and filters.topic in (None, row["real_topic"])
        and (filters.keys is None or has_keys(row["keys"], filters.keys))
        and (filters.since_at is None or row["since"] >= filters.since_at)
        and (filters.until_at is None or row["since"] <= filters.until_at)
    )


def _one_of_each_set(lake: Lake, targets: Sequence[Target | None]) -> list[RecordTarget]:
    """Returns the first of the halves of each unit: an operation about one is about all."""
    halves = [target for target in targets if isinstance(target, RecordTarget)]
    offsets = sorted({half.queue_offset for half in halves})
    state = state_of(lake).filter(pc.field("queue_offset").isin(offsets))
    units = {
        (row["queue_id"], row["queue_offset"]): row["unit_offset"]
        for row in state.select(["queue_id", "queue_offset", "unit_offset"]).to_pylist()
    }

    first_halves: dict[tuple[int, int], RecordTarget] = {}
    for half in halves:
        unit = units.get((half.queue_id, half.queue_offset), half.queue_offset)
        first_halves.setdefault((half.queue_id, unit), half)
    return list(first_halves.values())
