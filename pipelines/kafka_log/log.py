"""The Kafka log that a lake is made from: whether it is the same, and still has what comes next."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.errors import LostInputError
from pipelines.kafka_log.topics import KafkaTopics, Place
from storage.lake.epochs import Plan


class KafkaLog:
    """Kafka's cluster and topics as a lake knows them.

    `cluster_id` and `topic_ids`: as the last `check` found them.
    """

    def __init__(self, kafka: KafkaTopics) -> None:
        self._kafka = kafka
        self.cluster_id = ""
        self.topic_ids: Mapping[str, str] = {}

    def check(self, plan: Plan | None) -> None:
        """Compares the Kafka cluster and topics with those of a plan of this lake.

        Errors: LostInputError with both ids.
        """
        self.cluster_id, self.topic_ids = self._kafka.cluster_id(), self._kafka.topic_ids()
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
                what = "was deleted" if now is None else "was deleted and made again"
                raise LostInputError(
                    f"topic {topic} {what} (id {topic_id}, now {now}): its records that were not "
                    "landed are lost; a lake belongs to one log"
                )

    def start_offsets(self, landed: Mapping[Place, int]) -> dict[Place, int]:
        """Returns where landing goes on: where it stands, else Kafka's first offsets.

        Errors: LostInputError if Kafka no longer has the records that come next.
        """
        places = self._kafka.places()
        first, ends = self._kafka.first_offsets(places), self._kafka.end_offsets(places)
        for place, offset in landed.items():
            topic, partition = place
            if place not in first:
                raise LostInputError(
                    f"partition {partition} of {topic} is gone; the lake has landed it up to "
                    f"offset {offset}: a topic with fewer partitions is another topic"
                )
            if first[place] > offset:
                raise LostInputError(
                    f"Kafka no longer has offsets {offset} to {first[place] - 1} of {topic} "
                    f"partition {partition}: they were deleted before they were landed and are lost"
                )
            if ends[place] < offset:
                raise LostInputError(
                    f"{topic} partition {partition} ends at {ends[place]}, but the lake has landed "
                    f"it up to {offset}: Kafka lost records, or this is another log"
                )
        return {place: landed.get(place, offset) for place, offset in first.items()}

    def spans(
        self, to_offsets: Mapping[Place, int], landed: Mapping[Place, int]
    ) -> dict[Place, range]:
        """Returns the offsets of a micro-batch with these ends, from where landing stands."""
        first = self._kafka.first_offsets(place for place in to_offsets if place not in landed)
        return {
            place: range(landed.get(place, first.get(place, 0)), to)
            for place, to in sorted(to_offsets.items())
        }

    def end_offsets(self, places: Mapping[Place, object]) -> dict[Place, int]:
        """Returns where partitions end now. Errors: KafkaAwayError."""
        return self._kafka.end_offsets(places)
