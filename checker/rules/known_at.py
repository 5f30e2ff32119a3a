"""`known_at`: up to which instant the operations (or halves) of a queue are known.

It is the newest instant at which Kafka was asked for the end of that queue and told an offset at or
below what is landed now. Each epoch asks at `epoch_at`, so `known_at` equals `epoch_at` where
nothing came meanwhile. The job asks once more before each micro-batch is cut, so under load
`known_at` lags by little. It never decreases.

Source: PROTOCOL.md "Words". RocketMQ asks about ended halves instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EndOffsetSample:
    """The end offset of each partition, as Kafka reported it after an instant."""

    asked_at: int  # ms
    end_offsets: Mapping[tuple[str, int], int]


def known_at(
    horizons: Iterable[EndOffsetSample],
    landed: Mapping[tuple[str, int], int],
    before: Mapping[int, int],
    topic: str,
) -> dict[int, int]:
    """Returns `known_at` by queue of `topic`; a queue is missing while nothing is known of it.

    Input: what Kafka was asked, for this epoch and before; `landed`: the next offset to land of
    each partition, after this epoch; `before`: `known_at` as the last epoch recorded it.
    Units: ms.
    """
    known = dict(before)
    for horizon in horizons:
        for (name, partition), end_offset in horizon.end_offsets.items():
            if name == topic and end_offset <= landed.get((name, partition), 0):
                known[partition] = max(known.get(partition, horizon.asked_at), horizon.asked_at)
    return known


def unreached(
    horizons: Iterable[EndOffsetSample], landed: Mapping[tuple[str, int], int]
) -> tuple[EndOffsetSample, ...]:
    """Returns the horizons that some partition has not reached yet."""
    return tuple(
        horizon
        for horizon in horizons
        if any(end > landed.get(place, 0) for place, end in horizon.end_offsets.items())
    )
