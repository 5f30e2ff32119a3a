"""C(q): how far the operations (or halves) of a queue are known.

C(q) is T of the newest planned epoch, this one included, whose recorded end offset of that queue
is at or below what is landed now. It never decreases and lags one epoch behind T under load.

Source: PROTOCOL.md "Words"; RocketMQ has no such notion and asks about ended halves instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Horizon:
    """What Kafka reported after T of an epoch was fixed: the end offset of each partition."""

    epoch_at: int
    end_offsets: Mapping[tuple[str, int], int]


def known_at(
    horizons: Iterable[Horizon],
    landed: Mapping[tuple[str, int], int],
    before: Mapping[int, int],
    topic: str,
) -> dict[int, int]:
    """Give C by queue of `topic`; a queue of which nothing is known yet is not in it.

    Input: the horizons of planned epochs, this one included; `landed`: the next offset to land of
    each partition, after this epoch; `before`: C as recorded in the last epoch.
    Units: ms.
    """
    known = dict(before)
    for horizon in horizons:
        for (name, partition), end_offset in horizon.end_offsets.items():
            if name == topic and end_offset <= landed.get((name, partition), 0):
                known[partition] = max(known.get(partition, horizon.epoch_at), horizon.epoch_at)
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
