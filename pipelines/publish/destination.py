"""The Kafka that a publisher writes to: its topics, made or checked, and its progress topic."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.cimpl import NewPartitions, NewTopic

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.connection import REQUEST_TIMEOUT_S, Cluster
from pipelines.publish.errors import PublishError
from pipelines.publish.progress import NOTHING, ProgressLog, TopicProgress, read_log
from pipelines.publish.reading import (
    PublishedRecord,
    begins_and_ends,
    find_record,
    last_records,
    read_committed,
)
from pipelines.settings import PublisherSettings
from txlake._counted import counted

_APPEAR_S: Final = 30.0
_PAUSE_S: Final = 0.05
# Everybody who asks for the progress reads the whole topic. Kafka compacts no segment that is being
# written, and keeps the markers of transactions beyond their records: with its own defaults those
# are 1 GB or a week, and a day.
_PROGRESS_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",  # far longer than any read of a topic so small
}


@dataclass(frozen=True)
class KafkaTopic:
    """A topic as Kafka describes it."""

    topic_id: str
    partitions: int
    config: Mapping[str, str | None]


@dataclass(frozen=True)
class DestinationEnds:
    """The begins and ends of a destination's partitions.

    `last`: the newest record that a publisher has written.
    """

    last: Mapping[int, PublishedRecord]
    begins: Mapping[int, int]
    ends: Mapping[int, int]


def require_fit(
    topic: str,
    queues: int,
    described: KafkaTopic,
    settings: PublisherSettings,
    record_bytes_max: int,
) -> None:
    """Checks that a destination topic can take the messages of a topic. Errors: PublishError."""
    destination = settings.destination_of(topic)
    policy = described.config.get("cleanup.policy") or ""
    bytes_max = int(described.config.get("max.message.bytes") or 0)

    if described.partitions < queues:
        raise PublishError(
            f"the Kafka topic {destination} has {counted(described.partitions, 'partition')}, and "
            f"topic {topic} has {counted(queues, 'queue')}: each queue needs its own; add "
            "partitions, or name another destination"
        )
    if "compact" in policy and settings.null_bodies != "tombstones":
        raise PublishError(
            f"the Kafka topic {destination} has cleanup.policy={policy}: Kafka would delete "
            "messages that have the same key, and take a null body for a deletion; set it to "
            "delete, or say null_bodies = 'tombstones'"
        )
    if bytes_max < record_bytes_max:
        raise PublishError(
            f"the Kafka topic {destination} has max.message.bytes={bytes_max}, and a record can "
            f"need {record_bytes_max}; raise it, or lower record_bytes_max"
        )


def require_same_topic(
    progress: TopicProgress, destination: str, described: KafkaTopic | None
) -> None:
    """Checks that a destination is the one that was published to. Errors: PublishError."""
    if progress.destination != destination:
        raise PublishError(
            f"topic {progress.topic} was published to the Kafka topic {progress.destination}, and "
            f"the settings say {destination}; `txlake publish adopt` says where it begins there"
        )
    if described is not None and described.topic_id == progress.topic_id:
        return

    event = "was deleted" if described is None else "was deleted and made again"
    now = "" if described is None else f", now {described.topic_id}"
    published = sum(at + 1 for at in progress.last_offsets)
    raise PublishError(
        f"the Kafka topic {progress.destination} {event} (id {progress.topic_id}{now}) after "
        f"{counted(published, 'message')} of topic {progress.topic} had been published to it; "
        "`txlake publish adopt` says where it goes on"
    )


def require_same_end(
    progress: TopicProgress, lake_id: str, last: Mapping[int, PublishedRecord]
) -> None:
    """Compares the progress with the last record of each partition.

    A partition without a record is in order: Kafka deletes old records. Errors: PublishError.
    """
    for queue_id, record in sorted(last.items()):
        published = progress.last_offset(queue_id)
        if record.lake_id != lake_id:
            if published == NOTHING and progress.follows:
                continue
            raise PublishError(
                f"the last record of {progress.destination} partition {queue_id} is of lake "
                f"{record.lake_id}, and this lake is {lake_id}; `txlake publish adopt` says "
                "how this one goes on"
            )

        if record.queue_offset != published:
            raise PublishError(
                f"the last record of {progress.destination} partition {queue_id} is queue offset "
                f"{record.queue_offset}, and {published} is published as {progress.topic} says in "
                "the progress topic: one of them was changed or put back from a copy; "
                "`txlake publish adopt` says how it goes on"
            )


def require_unpublished(topic: str, destination: str, ends: DestinationEnds) -> None:
    """Checks that no publisher can have written to a destination without progress.

    Errors: PublishError.
    """
    for queue_id, record in sorted(ends.last.items()):
        raise PublishError(
            f"the Kafka topic {destination} has records of lake {record.lake_id}, the last one of "
            f"partition {queue_id} is queue offset {record.queue_offset}, and the progress topic "
            f"says nothing of topic {topic}: it was deleted, or another lake published there; "
            "`txlake publish adopt` says how it goes on"
        )

    for partition, end in sorted(ends.ends.items()):
        if not ends.begins[partition] == end > 0:
            continue
        raise PublishError(
            f"the Kafka topic {destination} had {counted(end, 'record')} in partition "
            f"{partition}, now deleted, and the progress topic says nothing of topic {topic}: "
            "nobody knows what was published; `txlake publish adopt` says how it goes on"
        )


class Destination:
    """One publisher's Kafka.

    Errors: KafkaAwayError, KafkaRefusedError; StartError for settings that librdkafka does not
    take.
    """

    def __init__(self, settings: PublisherSettings) -> None:
        self._settings = settings
        self._servers = settings.bootstrap_servers
        self._client = settings.client
        self._cluster = Cluster(self._servers, self._client)

    def describe(self, names: Iterable[str]) -> dict[str, KafkaTopic]:
        """Returns the topics that exist among some names."""
        existing = self._cluster.describe_topics(set(names))
        configs = self._cluster.topic_configs(existing)
        return {
            name: KafkaTopic(str(topic.topic_id), len(topic.partitions), configs[name])
            for name, topic in existing.items()
        }

    def topic_names(self) -> set[str]:
        """Returns the names of all topics of this Kafka that the client may see."""
        return set(self._cluster.topics())

    def describe_made(self, names: Iterable[str]) -> dict[str, KafkaTopic]:
        """Returns topics that were made. Errors: KafkaAwayError if one is gone again."""
        names = set(names)
        described = self.describe(names)
        gone = names - described.keys()
        if gone:
            raise KafkaAwayError(f"Kafka at {self._servers} has no topic {min(gone)}")
        return described

    def make_progress_topic(self) -> None:
        """Makes the progress topic if it is missing, and checks it. Errors: PublishError."""
        name = self._settings.progress_topic
        described = self.describe([name]).get(name)
        if described is None:
            self._create(name, 1, _PROGRESS_CONFIG)
            described = self.describe_made([name])[name]

        policy = described.config.get("cleanup.policy") or ""
        if "compact" not in policy or "delete" in policy:
            raise PublishError(
                f"the progress topic {name} has cleanup.policy={policy}: Kafka would delete how "
                "far publishers are; set it to compact"
            )
        if described.partitions != 1:
            raise PublishError(
                f"the progress topic {name} has {counted(described.partitions, 'partition')}: its "
                "records are read in the order of one; name another"
            )

    def make(self, topic: str, queues: int, record_bytes_max: int) -> None:
        """Makes a destination topic. Replay: does nothing if it is there."""
        self._create(
            self._settings.destination_of(topic),
            queues,
            {
                "cleanup.policy": "delete",
                "max.message.bytes": str(record_bytes_max),
                "message.timestamp.type": "CreateTime",
            },
        )

    def grow(self, destination: str, partitions: int) -> None:
        """Gives a topic more partitions."""
        futures = self._cluster.admin.create_partitions(
            [NewPartitions(destination, partitions)], request_timeout=REQUEST_TIMEOUT_S
        )
        for future in futures.values():
            self._cluster.result_of(future, "more partitions", KafkaError.INVALID_PARTITIONS)
        self._wait_for(destination, partitions)

    def progress(self, *, is_patient: bool = False) -> ProgressLog:
        """Returns the content of the progress topic; nothing if it is missing.

        Input: `is_patient`: waits for open Kafka transactions. A caller that has fenced the
        process before needs that; any other could wait for that process's open transaction.
        """
        records = self.progress_records(is_patient=is_patient)
        return read_log((message.key(), message.value()) for message in records)

    def progress_records(self, *, is_patient: bool = False) -> Iterator[Any]:
        """Returns the records of the progress topic; none if it is missing. Input: as above."""
        name = self._settings.progress_topic
        if name not in self._cluster.describe_topics([name]):
            return iter(())

        begins, ends = begins_and_ends(self._cluster, [(name, 0)])
        return read_committed(self._servers, self._client, begins, ends, is_patient=is_patient)

    def find(
        self,
        destination: str,
        partition: int,
        lake_id: str,
        queue_offset: int,
        runs: Iterable[int],
    ) -> int | None:
        """Returns Kafka's offset of the newest record with a queue offset; None without one.

        Input: `runs`: Kafka's offsets at which an adoption began a new run of queue offsets.
        """
        if destination not in self._cluster.describe_topics([destination]):
            return None

        at = (destination, partition)
        begins, ends = begins_and_ends(self._cluster, [at])
        begin, end = begins[at], ends[at]

        for run in sorted({begin, *runs}, reverse=True):
            span = (max(begin, run), end)
            kafka_offset = find_record(self._servers, self._client, at, span, lake_id, queue_offset)
            if kafka_offset is not None:
                return kafka_offset
            end = min(end, run)
        return None

    def records(self, destination: str) -> Iterator[Any]:
        """Returns all committed records of a topic, each partition's in order."""
        described = self._cluster.describe_topics([destination]).get(destination)
        count = len(described.partitions) if described else 0

        partitions = [(destination, number) for number in range(count)]
        begins, ends = begins_and_ends(self._cluster, partitions)
        return read_committed(self._servers, self._client, begins, ends)

    def ends(self, counts: Mapping[str, int]) -> dict[str, DestinationEnds]:
        """Returns the begins and ends of topics. Input: the number of partitions, by topic."""
        partitions = [(name, number) for name, count in counts.items() for number in range(count)]
        begins, ends = begins_and_ends(self._cluster, partitions)
        last = last_records(self._servers, self._client, begins, ends)

        return {
            name: DestinationEnds(
                {number: record for (topic, number), record in last.items() if topic == name},
                {number: begins[name, number] for number in range(count)},
                {number: ends[name, number] for number in range(count)},
            )
            for name, count in counts.items()
        }

    def _create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        self._cluster.create_topic(NewTopic(name, partitions, config=dict(config)))
        self._wait_for(name, partitions)

    def _wait_for(self, name: str, partitions: int) -> None:
        """Waits until Kafka knows a topic's partitions and their leaders."""
        deadline = time.monotonic() + _APPEAR_S
        while not self._is_ready(name, partitions):
            if time.monotonic() > deadline:
                raise KafkaAwayError(f"the Kafka topic {name} did not appear")
            time.sleep(_PAUSE_S)

    def _is_ready(self, name: str, partitions: int) -> bool:
        topic: Any = self._cluster.topics().get(name)
        if topic is None or len(topic.partitions) < partitions:
            return False

        try:
            begins_and_ends(self._cluster, [(name, number) for number in topic.partitions])
        except KafkaAwayError:  # a partition has no leader yet, or that does not know it yet
            return False
        return True
