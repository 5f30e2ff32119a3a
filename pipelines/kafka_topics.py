"""What the job needs to know of Kafka: its topics, their ids, their ends, its clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from pipelines.errors import KafkaAwayError, StartError
from pipelines.settings import Settings
from storage.kafka_rows import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

Place = tuple[str, int]  # Kafka topic, partition
_REQUEST_TIMEOUT_S = 10.0
_TIMESTAMP_TYPE = "message.timestamp.type"
_BATCH_BYTES_MAX = "max.message.bytes"

log = logging.getLogger("txlake.kafka")


def client_config(bootstrap_servers: str, client: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a confluent-kafka client; its own log lines are not printed."""
    return {
        **client,
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,
        "error_cb": lambda error: None,
    }


def producer_config(
    bootstrap_servers: str, client: Mapping[str, str], message_bytes_max: int
) -> dict[str, Any]:
    """Returns the settings of a producer of the job's: a record at the limit goes out whole."""
    return {
        **client_config(bootstrap_servers, client),
        "acks": "all",
        "message.max.bytes": p.batch_bytes_max(message_bytes_max),
    }


def _is(code: int, error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() == code


class KafkaTopics:
    """The job's topics on one cluster.

    Errors: KafkaAwayError when Kafka does not answer in time.
    """

    def __init__(self, settings: Settings, own_names: Mapping[str, str]) -> None:
        kafka = settings.kafka
        self.names = dict(own_names)
        self._settings = settings
        self._message_bytes_max = settings.transaction.message_bytes_max
        self._batch_bytes_max = p.batch_bytes_max(self._message_bytes_max)
        self._config = client_config(kafka.bootstrap_servers, kafka.client)
        self._admin = AdminClient(self._config)
        self._producer: Producer | None = None

    def _wait(self, futures: Iterable[Any], what: str) -> list[Any]:
        try:
            return [future.result(timeout=_REQUEST_TIMEOUT_S) for future in futures]
        except (KafkaException, TimeoutError) as error:
            raise KafkaAwayError(
                f"Kafka at {self._config['bootstrap.servers']} did not answer ({what}): {error}"
            ) from error

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster."""
        (described,) = self._wait(
            [self._admin.describe_cluster(request_timeout=_REQUEST_TIMEOUT_S)], "its cluster id"
        )
        return str(described.cluster_id)

    def _existing(self) -> dict[str, Any]:
        try:
            topics = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise KafkaAwayError(
                f"Kafka at {self._config['bootstrap.servers']} did not answer: {error}"
            ) from error
        return dict(topics)

    def create_missing(self) -> None:
        """Makes our topics where they are missing.

        They have broker time as the time of a record, and take a record at message_bytes_max.
        """
        existing = self._existing()
        levels = len(p.delay_levels_ms(self._settings.delay.levels))
        partitions = {
            HALF: self._settings.kafka.queues,
            OP: self._settings.kafka.queues,
            SCHEDULE: levels + 1,
            ADMIN: 1,
        }
        config = {
            _TIMESTAMP_TYPE: "LogAppendTime",
            _BATCH_BYTES_MAX: str(self._batch_bytes_max),
        }
        missing = [
            NewTopic(name, partitions[kind], config=config)
            for kind, name in self.names.items()
            if name not in existing
        ]
        if not missing:
            return
        made = self._admin.create_topics(missing, request_timeout=_REQUEST_TIMEOUT_S)
        for future in made.values():
            try:
                self._wait([future], "making topics")
            except KafkaAwayError as error:
                if not _is(KafkaError.TOPIC_ALREADY_EXISTS, error.__cause__):
                    raise
        deadline = time.monotonic() + _REQUEST_TIMEOUT_S
        while not self._are_ready():
            if time.monotonic() > deadline:
                raise KafkaAwayError(f"new topics did not appear: {[t.topic for t in missing]}")
            time.sleep(0.05)

    def _are_ready(self) -> bool:
        """Return whether all topics are there and each partition has found its leader."""
        if not set(self.names.values()) <= set(self._existing()):
            return False
        try:
            return bool(self.end_offsets(self.places()))
        except KafkaAwayError:
            return False

    def check(self, needs_append_time: bool = True) -> None:
        """Checks what the rules rest on: LogAppendTime, and op partitions for all half partitions.

        Topics that take no record at message_bytes_max are warned of: Kafka refuses such a record,
        its producer is told, and nothing is lost.
        Errors: StartError naming the topic and both values.
        """
        existing = self._existing()
        missing = sorted(set(self.names.values()) - set(existing))
        if missing:
            raise StartError(
                f"topic {missing[0]} is not in Kafka, but this lake was made from it: what it held "
                "and was not landed is lost"
            )
        halves = len(existing[self.names[HALF]].partitions)
        ops = len(existing[self.names[OP]].partitions)
        if ops < halves:
            raise StartError(
                f"{self.names[OP]} has {ops} partitions and {self.names[HALF]} has {halves}: an "
                "operation goes to the partition of its half; add partitions to the op topic"
            )
        admins = len(existing[self.names[ADMIN]].partitions)
        if admins != 1:
            raise StartError(
                f"{self.names[ADMIN]} has {admins} partitions: commands take effect in the order "
                "of one partition; make the topic again with 1"
            )
        self._check_configs(needs_append_time)

    def _check_configs(self, needs_append_time: bool) -> None:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in self.names.values()]
        futures = self._admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT_S)
        small = []
        for resource, config in zip(
            futures, self._wait(futures.values(), "topic settings"), strict=True
        ):
            found = config[_TIMESTAMP_TYPE].value
            if needs_append_time and found != "LogAppendTime":
                raise StartError(
                    f"topic {resource.name} has {_TIMESTAMP_TYPE}={found}: broker time decides "
                    "here; set it to LogAppendTime"
                )
            batch_bytes_max = int(config[_BATCH_BYTES_MAX].value)
            if batch_bytes_max < self._batch_bytes_max:
                small.append(f"{resource.name} has {batch_bytes_max}")
        if small:
            log.warning(
                "Kafka may refuse records of message_bytes_max = %d bytes, which need a topic's "
                "%s=%d: %s; raise it, or lower message_bytes_max",
                self._message_bytes_max, _BATCH_BYTES_MAX, self._batch_bytes_max, ", ".join(small),
            )  # fmt: skip

    def topic_ids(self) -> dict[str, str]:
        """Return the id of each topic that there is: a topic made again is another log."""
        names = list(self.names.values())
        futures = self._admin.describe_topics(
            TopicCollection(names), request_timeout=_REQUEST_TIMEOUT_S
        )
        found = {}
        for name, future in futures.items():
            try:
                found[name] = str(future.result(timeout=_REQUEST_TIMEOUT_S).topic_id)
            except (KafkaException, TimeoutError) as error:
                if not _is(KafkaError.UNKNOWN_TOPIC_OR_PART, error):
                    raise KafkaAwayError(
                        f"Kafka at {self._config['bootstrap.servers']} did not answer (topic ids): "
                        f"{error}"
                    ) from error
        return found

    def places(self) -> list[Place]:
        """Return all partitions of our topics."""
        existing = self._existing()
        return [
            (name, partition)
            for name in self.names.values()
            if name in existing
            for partition in sorted(existing[name].partitions)
        ]

    def end_offsets(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return where each partition ends, behind open Kafka transactions, too."""
        return self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def first_offsets(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the first offset that Kafka still has of each partition."""
        return self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def offsets_at(self, places: Iterable[Place], at_ms: int) -> dict[Place, int]:
        """Return the first offset stored at that instant or later; where there is none, the end."""
        places = list(places)
        ends = self.end_offsets(places)
        spec = OffsetSpec.for_timestamp(at_ms)
        found = self._offsets(places, spec)
        return {place: found[place] if found[place] >= 0 else end for place, end in ends.items()}

    def _offsets(self, places: Iterable[Place], spec: Any) -> dict[Place, int]:
        wanted = {TopicPartition(topic, partition): spec for topic, partition in places}
        if not wanted:
            return {}
        futures = self._admin.list_offsets(
            wanted,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_REQUEST_TIMEOUT_S,
        )
        found = self._wait(futures.values(), "offsets")
        return {
            (place.topic, place.partition): int(result.offset)
            for place, result in zip(futures, found, strict=True)
        }

    def ping(self, owner: str) -> tuple[int, int]:
        """Write a PING to the admin topic. Output: its offset, and the broker's clock in ms."""
        if self._producer is None:
            kafka = self._settings.kafka
            config = producer_config(kafka.bootstrap_servers, kafka.client, self._message_bytes_max)
            self._producer = Producer({**config, "linger.ms": 0})
        seen: list[Any] = []
        headers: list[tuple[str, str | bytes | None]] = [
            (p.COMMAND, p.PING.encode()),
            (p.ACTOR, owner.encode()),
        ]
        try:
            self._producer.produce(
                self.names[ADMIN],
                partition=0,
                headers=headers,
                on_delivery=lambda error, message: seen.append((error, message)),
            )
        except KafkaException as error:
            raise KafkaAwayError(f"the broker's clock could not be asked: {error}") from error
        self._producer.flush(_REQUEST_TIMEOUT_S)
        if not seen or seen[0][0] is not None:
            reason = seen[0][0] if seen else f"no answer within {_REQUEST_TIMEOUT_S:.0f} s"
            raise KafkaAwayError(f"the broker's clock could not be asked: {reason}")
        message = seen[0][1]
        return message.offset(), message.timestamp()[1]
