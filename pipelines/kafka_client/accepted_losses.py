"""Losses that an operator has accepted: offsets that Kafka deleted before they were landed.

The commands are records of the admin topic (ACCEPT_LOSS) that are not landed yet: a job that finds
such a loss does not start, so it lands nothing.

Source: docs/protocol/rules.md "Operator commands".
"""

from __future__ import annotations

import pyarrow as pa

from pipelines.kafka_client.record_reader import read_kafka
from pipelines.settings import Settings
from storage.lake.loss import Loss
from storage.wire.decode import decode_rows
from storage.wire.record_kinds import ADMIN
from txlake.protocol import ACCEPT_LOSS, LostTarget, command_target


def accepted_losses(settings: Settings, admin: range) -> list[Loss]:
    """Returns the losses that commands accept, in the order of the commands.

    Input: the offsets of the admin topic to read. Errors: KafkaAwayError.
    """
    topics = settings.kafka.topics()
    limits = settings.wire_limits()
    batches = read_kafka(settings.kafka, {(topics[ADMIN], 0): admin})
    losses = []

    for batch in batches:
        for row in decode_rows(pa.Table.from_batches([batch]), limits).to_pylist():
            is_readable = row["error"] is None and row["command"] == ACCEPT_LOSS
            target = command_target(ACCEPT_LOSS, row["target"]) if is_readable else None

            if isinstance(target, LostTarget):
                losses.append(
                    Loss(
                        topics[target.kind],
                        target.partition,
                        target.first,
                        target.last,
                        row["queue_offset"],
                    )
                )

    return losses
