"""`known_at`: up to which instant the operations (or halves) of a queue are known.

It is the newest instant at which the end offset of that queue, as Kafka reported it, was at or
below what has landed now. Each epoch asks at `epoch_at`, so `known_at` equals `epoch_at` where
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
    samples: Iterable[EndOffsetSample],
    landed: Mapping[tuple[str, int], int],
    before: Mapping[int, int],
    topic: str,
) -> dict[int, int]:
    """Returns `known_at` by queue of `topic`, without the queues that have none yet.

    Input: `samples` of this epoch and of earlier ones; `landed`: the next offset to land of each
    partition, after this epoch; `before`: `known_at` as the last epoch recorded it.
    Units: ms.
    """
    instants = dict(before)

    for sample in samples:
        for (name, partition), end_offset in sample.end_offsets.items():
            if name == topic and end_offset <= landed.get((name, partition), 0):
                earlier = instants.get(partition, sample.asked_at)
                instants[partition] = max(earlier, sample.asked_at)

    return instants


def unreached(
    samples: Iterable[EndOffsetSample], landed: Mapping[tuple[str, int], int]
) -> tuple[EndOffsetSample, ...]:
    """Returns the samples that landing has not reached in some partition."""
    return tuple(
        sample
        for sample in samples
        if any(end > landed.get(partition, 0) for partition, end in sample.end_offsets.items())
    )
