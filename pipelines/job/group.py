"""The drivers of a lake, as Kafka counts them: one is active, the others stand by.

All drivers of a lake are members of one consumer group on the one partition of the admin topic. The
member that has the partition is active.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10's is its own
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from pipelines.errors import StartError
from pipelines.kafka_log.connection import REQUEST_TIMEOUT_S, Cluster, code_of
from pipelines.kafka_log.rights import group_id
from pipelines.settings import KafkaSettings

# A member that Kafka has not heard from for so long is dead. Brokers allow 6 s or more by default.
SESSION_TIMEOUT_MS: Final = 6_000
_REQUEST_S = 3.0
# The group's coordinator is moving, or the group is new: the next look finds it.
_NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_ID_NOT_FOUND,
)


@dataclass(frozen=True)
class Drivers:
    """The drivers of one lake by owner, as `host:process:random`.

    `active`: the one that has the partition; None if none has, or if Kafka is about to decide.
    """

    active: str | None = None
    others: tuple[str, ...] = ()


class DriverGroup:
    """The consumer group of a lake's drivers, looked at from outside: no driver looks.

    librdkafka aborts the process when the broker goes away while it is asked (an assertion of
    `rd_kafka_enq_once_del_source_return`); what a driver knows is in `Election`.
    """

    def __init__(self, kafka: KafkaSettings, lake_path: str) -> None:
        self.id = group_id(lake_path, kafka.admin_topic)
        self._cluster = Cluster(kafka.bootstrap_servers, kafka.client)

    def look(self) -> Drivers:
        """Returns the drivers that Kafka counts now.

        Errors: KafkaAwayError; StartError if Kafka does not let us look.
        """
        asked = self._cluster.admin.describe_consumer_groups([self.id], request_timeout=_REQUEST_S)
        try:
            return drivers_of(asked[self.id].result(timeout=_REQUEST_S + REQUEST_TIMEOUT_S))
        except (KafkaException, FutureTimeoutError) as error:
            code = code_of(error)
            if code in _NOT_YET:
                return Drivers()
            if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise StartError(refused(self.id, error)) from error
            raise self._cluster.trouble("the lake's drivers", error) from error


def drivers_of(description: Any) -> Drivers:
    """Returns the drivers in Kafka's description of their group."""
    active, others = None, []
    for member in description.members:
        if member.assignment is not None and member.assignment.topic_partitions:
            active = str(member.client_id)
        else:
            others.append(str(member.client_id))
    return Drivers(active, tuple(sorted(others)))


def refused(group: str, error: object) -> str:
    """Returns the sentence for a group that Kafka does not let us use."""
    return (
        f"Kafka refuses the consumer group {group}, in which it elects the driver of this lake: "
        f"{error}; allow the job READ and DESCRIBE on the group"
    )
