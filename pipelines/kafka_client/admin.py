"""The job's view of Kafka: its topics, their ids, their ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from pipelines.errors import KafkaAwayError, StartError
from pipelines.kafka_client.acls import job_topics, missing_acl, require_rights
from pipelines.kafka_client.connection import (
    REQUEST_TIMEOUT_S,
    Cluster,
    Partition,
    error_code,
)
from pipelines.settings import Settings
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p
from txlake._counted import counted

_TIMESTAMP_TYPE = "message.timestamp.type"
_BATCH_BYTES_MAX = "max.message.bytes"
_CLEANUP_POLICY = "cleanup.policy"
_RETENTION_MS = "retention.ms"
_RETENTION_BYTES = "retention.bytes"

log = logging.getLogger("txlake.kafka")


class KafkaAdmin:
    """The job's topics on one cluster.

    Errors: KafkaAwayError if Kafka does not answer in time; KafkaRefusedError if it refuses.
    """

    def __init__(self, settings: Settings, topic_by_kind: Mapping[str, str]) -> None:
        kafka = settings.kafka
        self.names = dict(topic_by_kind)
        self.settings = settings
        self._batch_bytes_max = p.batch_bytes_max(settings.transaction.message_bytes_max)
        self._warned: frozenset[str] = frozenset()  # the doubts of the check before
        self._servers = kafka.bootstrap_servers
        self._cluster = Cluster(kafka.bootstrap_servers, kafka.client)
        self._admin = self._cluster.admin

    def cluster_id(self) -> str:
        """Returns the id of the Kafka cluster."""
        future = self._admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
        return str(self._cluster.result_of(future, "its cluster id").cluster_id)

    def existing_names(self) -> frozenset[str]:
        """Returns the names of all topics that Kafka has. Errors: KafkaAwayError."""
        return frozenset(self._cluster.topics())

    def create_missing(self) -> None:
        """Makes the topics of ours that are missing.

        Their records have the broker's time, and can be as large as message_bytes_max.
        """
        existing = self._cluster.topics()
        partitions = {
            HALF: self.settings.kafka.queues,
            OP: self.settings.kafka.queues,
            SCHEDULE: len(p.delay_levels_ms(self.settings.delay.levels)) + 1,
            ADMIN: 1,
        }
        config = {
            _TIMESTAMP_TYPE: "LogAppendTime",
            _BATCH_BYTES_MAX: str(self._batch_bytes_max),
            _CLEANUP_POLICY: "delete",  # a broker's own default may be another
        }
        missing = [
            NewTopic(name, partitions[kind], config=config)
            for kind, name in self.names.items()
            if name not in existing
        ]
        if not missing:
            return

        for topic in missing:
            try:
                self._cluster.create_topic(topic)
            except KafkaAwayError as error:
                if error_code(error.__cause__) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise missing_acl(self._servers, f"CREATE on topic {topic.topic}") from error
                raise

        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while not self._are_ready():
            if time.monotonic() > deadline:
                raise KafkaAwayError(f"new topics did not appear: {[t.topic for t in missing]}")
            time.sleep(0.05)

    def _are_ready(self) -> bool:
        """Returns whether all topics exist and each partition has found its leader."""
        if not set(self.names.values()) <= set(self._cluster.topics()):
            return False
        try:
            return bool(self.end_offsets(self.partitions()))
        except KafkaAwayError:
            return False

    def require_rights(self) -> None:
        """Checks the job's rights on its topics that exist.

        A topic that may not be described would seem to be missing. Errors: KafkaRefusedError.
        """
        require_rights(self._cluster, self._servers, job_topics(self.settings.kafka))

    def check(self, needs_append_time: bool = True) -> None:
        """Checks the topics before a start, as `require_sound`, and logs the doubts.

        A doubt is logged again only if the set of doubts changed since the check before.
        Errors: StartError with the topic and both values.
        """
        doubts = self.require_sound(needs_append_time)
        for text in doubts:
            if text not in self._warned:
                log.warning("%s", text)
        self._warned = frozenset(doubts)

    def require_sound(self, needs_append_time: bool = True) -> list[str]:
        """Checks that our topics are as the job needs them.

        Output: doubts: settings that do harm only while the job is away, or that Kafka tells a
        producer, one sentence each. Errors: StartError with the topic and both values.
        """
        existing = self._cluster.topics()
        missing = sorted(set(self.names.values()) - set(existing))
        if missing:
            raise StartError(
                f"topic {missing[0]} is not in Kafka, but this lake was made from it: its "
                "records that were not landed are lost"
            )

        count = {kind: len(existing[name].partitions) for kind, name in self.names.items()}
        if count[OP] < count[HALF]:
            raise StartError(
                f"{self.names[OP]} has {counted(count[OP], 'partition')} and "
                f"{self.names[HALF]} has {count[HALF]}: an operation goes to the partition of its "
                "half; add partitions to the op topic"
            )
        if count[ADMIN] != 1:
            raise StartError(
                f"{self.names[ADMIN]} has {count[ADMIN]} partitions: commands take effect in the "
                "order of one partition; make the topic again with 1"
            )

        return [*self._doubts_of_counts(count), *self._doubts_of_configs(needs_append_time)]

    def _doubts_of_counts(self, count: Mapping[str, int]) -> list[str]:
        """Returns a doubt if the half topic has fewer partitions than the settings say."""
        queues = self.settings.kafka.queues
        partitions = count[HALF]
        if partitions >= queues:
            return []

        half, op = self.names[HALF], self.names[OP]
        return [
            f"[kafka] queues = {queues}, and topic {half} has {counted(partitions, 'partition')}: "
            f"the setting counts when the job makes its topics; add partitions, to {op} first and "
            f"then to {half}, or set queues = {partitions}"
        ]

    def _doubts_of_configs(self, needs_append_time: bool) -> list[str]:
        warnings: list[str] = []

        for topic, config in self._cluster.topic_configs(self.names.values()).items():
            _require_sound(topic, config, needs_append_time)
            warnings += self._doubts(topic, config)

        return warnings

    def _doubts(self, topic: str, config: Mapping[str, str | None]) -> list[str]:
        """Returns the settings of a topic that can do harm, one sentence each."""
        doubts = []
        transaction = self.settings.transaction

        batch_bytes_max = int(config[_BATCH_BYTES_MAX] or 0)
        if batch_bytes_max < self._batch_bytes_max:
            doubts.append(
                "Kafka may refuse records of message_bytes_max = "
                f"{transaction.message_bytes_max} bytes, which need a topic's "
                f"{_BATCH_BYTES_MAX}={self._batch_bytes_max}: {topic} has {batch_bytes_max}; raise "
                "it, or lower message_bytes_max"
            )

        # An empty policy deletes nothing.
        if "delete" not in (config.get(_CLEANUP_POLICY) or ""):
            return doubts

        kept_ms = int(config.get(_RETENTION_MS) or p.FOREVER)
        if p.FOREVER < kept_ms < transaction.half_retention_ms:
            doubts.append(
                f"topic {topic} has {_RETENTION_MS}={kept_ms}, less than half_retention_ms = "
                f"{transaction.half_retention_ms}: records are lost if the job is away for so "
                "long; raise it"
            )

        kept_bytes = int(config.get(_RETENTION_BYTES) or p.FOREVER)
        if kept_bytes != p.FOREVER:
            doubts.append(
                f"topic {topic} has {_RETENTION_BYTES}={kept_bytes}: records are lost if more than "
                f"that comes while the job is away; set it to {p.FOREVER}, and limit the time"
            )

        return doubts

    def topic_ids(self) -> dict[str, str]:
        """Returns the id of each existing topic. A topic that was made again is another log."""
        described = self._cluster.describe_topics(self.names.values())
        return {name: str(topic.topic_id) for name, topic in described.items()}

    def partitions(self) -> list[Partition]:
        """Returns all partitions of our topics."""
        existing = self._cluster.topics()
        return [
            (name, partition)
            for name in self.names.values()
            if name in existing
            for partition in sorted(existing[name].partitions)
        ]

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the end of each partition, behind open Kafka transactions, too."""
        return self._cluster.end_offsets(partitions)

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the first offset that Kafka still has of each partition."""
        return self._cluster.beginning_offsets(partitions)

    def offsets_at(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, int]:
        """Returns each partition's first offset stored at that instant or later, else its end."""
        partitions = list(partitions)
        ends = self.end_offsets(partitions)
        offsets = self._cluster.offsets(partitions, OffsetSpec.for_timestamp(at_ms))
        return {at: offsets[at] if offsets[at] >= 0 else end for at, end in ends.items()}


def _require_sound(topic: str, config: Mapping[str, str | None], needs_append_time: bool) -> None:
    """Checks the settings of a topic that our guarantees need. Errors: StartError."""
    timestamp_type = config[_TIMESTAMP_TYPE]
    if needs_append_time and timestamp_type != "LogAppendTime":
        raise StartError(
            f"topic {topic} has {_TIMESTAMP_TYPE}={timestamp_type}: broker time decides here; set "
            "it to LogAppendTime"
        )

    policy = config.get(_CLEANUP_POLICY) or ""
    if "compact" in policy:
        raise StartError(
            f"topic {topic} has {_CLEANUP_POLICY}={policy}: Kafka deletes records of it that were "
            "not landed, wherever a newer one has the same key; set it to delete"
        )
