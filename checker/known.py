"""C(q): how far the operations (or halves) of a queue are known.

C(q) is the newest instant at which Kafka was asked for the end of that queue, and what it said is
at or below what is landed now. Each epoch asks at T, so C(q) is T where nothing came meanwhile;
the job asks once more before each micro-batch is cut, so C(q) lags by little under load. It never
decreases.

Source: PROTOCOL.md "Words"; RocketMQ has no such notion and asks about ended halves instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Horizon:
    """What Kafka reported after an instant was fixed: the end offset of each partition."""

    asked_at: int  # ms
    end_offsets: Mapping[tuple[str, int], int]


def known_at(
    horizons: Iterable[Horizon],
    landed: Mapping[tuple[str, int], int],
    before: Mapping[int, int],
    topic: str,
) -> dict[int, int]:
    """Return C by queue of `topic`; a queue of which nothing is known yet is not in it.

    Input: what Kafka was asked, for this epoch and before; `landed`: the next offset to land of
    each partition, after this epoch; `before`: C as recorded in the last epoch.
    Units: ms.
    """
    known = dict(before)
    for horizon in horizons:
        for (name, partition), end_offset in horizon.end_offsets.items():
            if name == topic and end_offset <= landed.get((name, partition), 0):
                known[partition] = max(known.get(partition, horizon.asked_at), horizon.asked_at)
    return known


def still_ahead(
    horizons: Iterable[Horizon], landed: Mapping[tuple[str, int], int]
) -> tuple[Horizon, ...]:
    """Keep the horizons that some partition has not reached yet."""
    return tuple(
        horizon
        for horizon in horizons
        if any(end > landed.get(place, 0) for place, end in horizon.end_offsets.items())
    )
