"""The Kafka log that a lake is made from: is it the same, and does it have the next records."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.errors import LostInputError
from pipelines.kafka_client.accepted_losses import accepted_losses
from pipelines.kafka_client.admin import KafkaAdmin, Partition
from storage.lake.epochs import Plan
from storage.lake.loss import Loss
from storage.wire.record_kinds import ADMIN


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
        return _lost_offsets(landed, self._require_one_log(landed))

    def start_offsets(self, landed: Mapping[Partition, int]) -> dict[Partition, int]:
        """Returns where landing goes on: behind the landed offsets, else at Kafka's first ones.

        Behind a loss that an operator has accepted it goes on where Kafka does; `accepted` has it.
        Errors: LostInputError if Kafka no longer has the records that come next; as
        `_require_one_log`.
        """
        first = self._require_one_log(landed)
        starts = {place: max(landed.get(place, offset), offset) for place, offset in first.items()}
        lost = _lost_offsets(landed, first)
        self.accepted = self._accepted_losses(lost, landed) if lost else {}

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
        places = self._kafka.partitions()
        first = self._kafka.beginning_offsets(places)
        ends = self._kafka.end_offsets(places)

        for place, offset in landed.items():
            topic, partition = place
            if place not in first:
                raise LostInputError(
                    f"partition {partition} of {topic} is gone; the lake has landed it up to "
                    f"offset {offset}: a topic with fewer partitions is another topic"
                )

            if ends[place] < offset:
                raise LostInputError(
                    f"{topic} partition {partition} ends at {ends[place]}, but the lake has landed "
                    f"it up to {offset}: Kafka lost records, or this is another log"
                )
        return first

    def _accepted_losses(
        self, lost: Mapping[Partition, range], landed: Mapping[Partition, int]
    ) -> dict[Partition, Loss]:
        """Returns the losses that commands accept which are not landed yet."""
        admin = self._kafka.names[ADMIN], 0
        first = self._kafka.beginning_offsets([admin])
        end = self._kafka.end_offsets([admin])
        begin = max(first[admin], landed.get(admin, 0))

        commands = accepted_losses(self._kafka.settings, range(begin, end[admin]))
        return {
            place: loss
            for loss in commands
            for place, offsets in lost.items()
            if loss.accepts(place, offsets)
        }

    def begins(self, place: Partition, landed: int) -> int:
        """Returns where landing of a partition goes on, behind an accepted loss."""
        loss = self.accepted.get(place)
        return landed if loss is None else max(landed, loss.last + 1)

    def present(self, spans: Mapping[Partition, range]) -> dict[Partition, range]:
        """Returns the part of some offsets that is not accepted as lost."""
        return {
            place: range(min(self.begins(place, span.start), span.stop), span.stop)
            for place, span in spans.items()
        }

    def spans(
        self, to_offsets: Mapping[Partition, int], landed: Mapping[Partition, int]
    ) -> dict[Partition, range]:
        """Returns the offsets of a micro-batch with these ends, from the landed offsets on."""
        first = self._kafka.beginning_offsets(place for place in to_offsets if place not in landed)
        return {
            place: range(landed.get(place, first.get(place, 0)), to)
            for place, to in sorted(to_offsets.items())
        }

    def end_offsets(self, places: Mapping[Partition, object]) -> dict[Partition, int]:
        """Returns the current ends of partitions. Errors: KafkaAwayError."""
        return self._kafka.end_offsets(places)


def _lost_offsets(
    landed: Mapping[Partition, int], first: Mapping[Partition, int]
) -> dict[Partition, range]:
    return {
        place: range(offset, first[place])
        for place, offset in landed.items()
        if first[place] > offset
    }
