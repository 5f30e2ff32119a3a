"""The Kafka log that a lake is made from: whether it is the same, and has the next records.

An operator can accept that Kafka deleted offsets before they were landed. These commands
(ACCEPT_LOSS) are records of the admin topic that are not landed yet: a job that finds such a loss
does not start, so it lands nothing.

Source: docs/protocol/rules.md "Operator commands".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from pipelines.errors import LostInputError
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.record_reader import read_kafka
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.loss import Loss
from storage.wire.decode import decode_rows
from storage.wire.record_kinds import ADMIN
from txlake.protocol import ACCEPT_LOSS, LostTarget, command_target


class SourceLog:
    """Kafka's cluster and topics as a lake knows them.

    `cluster_id` and `topic_ids`: as the last `check` found them. `accepted`: losses that an
    operator has accepted, and that no plan names yet, by partition.
    """

    def __init__(self, kafka: KafkaAdmin) -> None:
        self._kafka = kafka
        self.cluster_id = ""
        self.topic_ids: Mapping[str, str] = {}
        self.accepted: Mapping[Partition, Loss] = {}

    def check(self, plan: Plan | None) -> None:
        """Compares the Kafka cluster and topics with those of a plan of this lake.

        Errors: LostInputError with both ids.
        """
        self.cluster_id = self._kafka.cluster_id()
        self.topic_ids = self._kafka.topic_ids()
        if plan is None:
            return

        if self.cluster_id != plan.cluster_id:
            raise LostInputError(
                f"this is Kafka cluster {self.cluster_id}; the lake was made from "
                f"{plan.cluster_id}: their offsets are unrelated"
            )

        for topic, topic_id in plan.topic_ids.items():
            now = self.topic_ids.get(topic)
            if now != topic_id:
                event = "was deleted" if now is None else "was deleted and made again"
                raise LostInputError(
                    f"topic {topic} {event} (id {topic_id}, now {now}): its records that were not "
                    "landed are lost; a lake belongs to one log"
                )

    def losses(self, landed: Mapping[Partition, int]) -> dict[Partition, range]:
        """Returns the offsets to land next that Kafka no longer has, by partition.

        Errors: as `_require_one_log`.
        """
        first = self._require_one_log(landed)
        return _lost_offsets(_next_offsets(landed, first), first)

    def start_offsets(
        self, landed: Mapping[Partition, int], planned: Iterable[Loss] = ()
    ) -> dict[Partition, int]:
        """Returns where landing goes on: behind the landed offsets, as `_next_offsets`.

        Behind a loss that an operator has accepted it goes on where Kafka does; `accepted` has it.
        Input: `planned`: the losses of an epoch that is not committed, whose commands can be landed
        already. Errors: LostInputError if Kafka no longer has the records that come next; as
        `_require_one_log`.
        """
        first = self._require_one_log(landed)
        wanted = _next_offsets(landed, first)
        starts = {partition: max(wanted[partition], offset) for partition, offset in first.items()}
        lost = _lost_offsets(wanted, first)
        self.accepted = self._accepted_losses(lost, landed, planned) if lost else {}

        for (topic, partition), offsets in lost.items():
            if (topic, partition) not in self.accepted:
                raise LostInputError(
                    f"Kafka no longer has offsets {offsets.start} to {offsets[-1]} of {topic} "
                    f"partition {partition}: they were deleted before they were landed and are "
                    "lost; `txlake losses accept` lets the job go on without them"
                )
        return starts

    def _require_one_log(self, landed: Mapping[Partition, int]) -> dict[Partition, int]:
        """Checks that partitions go on behind the landed offsets. Output: Kafka's first offsets.

        Errors: LostInputError if a partition is gone, or ends before the landed offsets: that
        cannot be accepted, since offsets would stand for two records.
        """
        partitions = self._kafka.partitions()
        first = self._kafka.beginning_offsets(partitions)
        ends = self._kafka.end_offsets(partitions)

        for (topic, number), offset in landed.items():
            if (topic, number) not in first:
                raise LostInputError(
                    f"partition {number} of {topic} is gone; the lake has landed it up to "
                    f"offset {offset}: a topic with fewer partitions is another topic"
                )

            end = ends[topic, number]
            if end < offset:
                raise LostInputError(
                    f"{topic} partition {number} ends at {end}, but the lake has landed it up to "
                    f"{offset}: Kafka lost records, or this is another log"
                )

        return first

    def _accepted_losses(
        self,
        lost: Mapping[Partition, range],
        landed: Mapping[Partition, int],
        planned: Iterable[Loss],
    ) -> dict[Partition, Loss]:
        """Returns the losses that a plan goes past, or commands accept that are not landed yet."""
        admin = self._kafka.names[ADMIN], 0
        first = self._kafka.beginning_offsets([admin])
        end = self._kafka.end_offsets([admin])
        begin = max(first[admin], landed.get(admin, 0))

        commands = _read_accepted_losses(self._kafka.settings, range(begin, end[admin]))
        return {
            partition: loss
            for loss in [*planned, *commands]
            for partition, offsets in lost.items()
            if loss.accepts(partition, offsets)
        }

    def begins(self, partition: Partition, landed: int) -> int:
        """Returns where landing of a partition goes on, behind an accepted loss."""
        loss = self.accepted.get(partition)
        return landed if loss is None else max(landed, loss.last + 1)

    def present(self, spans: Mapping[Partition, range]) -> dict[Partition, range]:
        """Returns the part of some offsets that is not accepted as lost."""
        return {
            partition: range(min(self.begins(partition, span.start), span.stop), span.stop)
            for partition, span in spans.items()
        }

    def spans(
        self, to_offsets: Mapping[Partition, int], landed: Mapping[Partition, int]
    ) -> dict[Partition, range]:
        """Returns the offsets of a micro-batch with these ends, from the landed offsets on."""
        starts = landed or self._kafka.beginning_offsets(to_offsets)
        return {
            partition: range(starts.get(partition, 0), to)
            for partition, to in sorted(to_offsets.items())
        }

    def end_offsets(self, partitions: Mapping[Partition, object]) -> dict[Partition, int]:
        """Returns the current ends of partitions. Errors: KafkaAwayError."""
        return self._kafka.end_offsets(partitions)


def _next_offsets(
    landed: Mapping[Partition, int], first: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Returns the offset to land next of each partition.

    A new lake begins with what Kafka has. A partition that comes later is landed from its first
    record on. Input: the landed ends; Kafka's first offsets.
    """
    known = landed or first
    return {partition: known.get(partition, 0) for partition in first}


def _lost_offsets(
    wanted: Mapping[Partition, int], first: Mapping[Partition, int]
) -> dict[Partition, range]:
    return {
        partition: range(offset, first[partition])
        for partition, offset in wanted.items()
        if first[partition] > offset
    }


def _read_accepted_losses(settings: Settings, admin: range) -> list[Loss]:
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
