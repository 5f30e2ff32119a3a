"""Offsets that Kafka deleted before they were landed, and that an operator accepted as lost.

Source: docs/protocol/rules.md "Operator commands".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage.lake.epochs import Partition, Plan

# The parameter of a plan that names the losses which its epoch goes past.
LOSSES = "losses"


@dataclass(frozen=True)
class Loss:
    """Offsets of a partition that Kafka no longer has, and the command that accepts the loss."""

    topic: str
    partition: int
    first: int
    last: int
    admin_offset: int

    @property
    def topic_partition(self) -> Partition:
        """Returns the Kafka partition."""
        return self.topic, self.partition

    def accepts(self, partition: Partition, lost: range) -> bool:
        """Returns whether it names all of a loss, and nothing that Kafka still has."""
        is_covered = self.first <= lost.start and self.last == lost.stop - 1
        return self.topic_partition == partition and is_covered


def as_parameter(losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """Returns losses as a plan records them, in order."""
    return [
        {
            "topic": loss.topic,
            "partition": loss.partition,
            "first": loss.first,
            "last": loss.last,
            "admin_offset": loss.admin_offset,
        }
        for loss in sorted(losses, key=lambda loss: loss.topic_partition)
    ]


def planned_losses(plan: Plan) -> list[Loss]:
    """Returns the losses that a plan goes past."""
    return [Loss(**loss) for loss in plan.parameters.get(LOSSES, ())]
