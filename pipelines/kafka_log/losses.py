"""What an operator has accepted as lost: offsets that Kafka deleted before they were landed.

The commands are records of the admin topic (ACCEPT_LOSS) that are not landed yet: a job that finds
such a loss does not start, so it lands nothing.

Source: PROTOCOL.md "Operator commands".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.kafka_log.plain_records import plain_records
from pipelines.settings import Settings
from storage.lake.epochs import Place
from storage.wire.decode import decode_rows
from storage.wire.kinds import ADMIN
from txlake.protocol import ACCEPT_LOSS, LostTarget, command_target


@dataclass(frozen=True)
class Loss:
    """Offsets of a partition that Kafka has no longer, and the command that accepts that."""

    topic: str
    partition: int
    first: int
    last: int
    admin_offset: int

    @property
    def place(self) -> Place:
        """Returns the Kafka partition."""
        return self.topic, self.partition

    def accepts(self, place: Place, lost: range) -> bool:
        """Returns whether it names all of a loss, and nothing that Kafka still has."""
        return self.place == place and self.first <= lost.start and self.last == lost.stop - 1


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
        for loss in sorted(losses, key=lambda loss: loss.place)
    ]


def accepted_losses(settings: Settings, admin: range) -> list[Loss]:
    """Returns the losses that commands accept, in the order of the commands.

    Input: the offsets of the admin topic to look at. Errors: KafkaAwayError.
    """
    topics, limits = settings.kafka.topics(), settings.wire_limits()
    batches = plain_records(settings.kafka, {(topics[ADMIN], 0): admin})
    found = []

    for batch in batches:
        for row in decode_rows(pa.Table.from_batches([batch]), limits).to_pylist():
            is_readable = row["error"] is None and row["command"] == ACCEPT_LOSS
            target = command_target(ACCEPT_LOSS, row["target"]) if is_readable else None

            if isinstance(target, LostTarget):
                found.append(
                    Loss(
                        topics[target.kind],
                        target.partition,
                        target.first,
                        target.last,
                        row["queue_offset"],
                    )
                )

    return found
