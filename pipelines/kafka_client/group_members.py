"""The members of a group that elects one of them, as Kafka counts them (`Member` is one's part).

The member that has the one partition of their topic is active, the others stand by.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10's is its own
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pipelines.errors import StartError
from pipelines.kafka_client.connection import REQUEST_TIMEOUT_S, Cluster, error_code
from pipelines.kafka_client.group_member import ElectedProcess, refusal_text

_REQUEST_S = 3.0
# The group's coordinator is moving, or the group is new: the next look finds it.
_NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_ID_NOT_FOUND,
)


@dataclass(frozen=True)
class Members:
    """The members of a group by owner, as `host:process:random`.

    `active`: the one that has the partition; None if none has, or if Kafka is about to decide.
    """

    active: str | None = None
    others: tuple[str, ...] = ()


class MemberGroup:
    """A group, described from outside, not by a member.

    librdkafka aborts the process when the broker goes away during `describe` (an assertion of
    `rd_kafka_enq_once_del_source_return`); `Member` tells without a request. The job calls `find`.
    Input: the group's id, and in words the process that it elects.
    """

    def __init__(
        self, bootstrap_servers: str, client: Mapping[str, str], group: str, elected: ElectedProcess
    ) -> None:
        self.id = group
        self._elected_process = elected
        self._cluster = Cluster(bootstrap_servers, client)

    def describe(self) -> Members:
        """Returns the members that Kafka counts now.

        Errors: KafkaAwayError; StartError if Kafka does not let us look.
        """
        futures = self._cluster.admin.describe_consumer_groups(
            [self.id], request_timeout=_REQUEST_S
        )

        try:
            return members_of(futures[self.id].result(timeout=_REQUEST_S + REQUEST_TIMEOUT_S))
        except (KafkaException, FutureTimeoutError) as error:
            code = error_code(error)
            if code in _NOT_YET:
                return Members()
            if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise StartError(refusal_text(self.id, self._elected_process, error)) from error
            raise self._cluster.to_error("the members of a group", error) from error

    def find(self) -> Members:
        """Returns the members, as `describe`, in a process that must not be aborted.

        It asks by librdkafka's older request, which needs all brokers of the cluster.
        Errors: KafkaAwayError; StartError if Kafka does not let us look.
        """
        self._cluster.topics()  # librdkafka asks no broker before it has all of their names
        # Python would print a line for it; a context that restores the filters is not for threads.
        warnings.filterwarnings("ignore", r"list_groups\(\) is deprecated", DeprecationWarning)
        admin = self._cluster.admin
        try:
            groups: Any = super(AdminClient, admin).list_groups(self.id, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise self._cluster.to_error("the members of a group", error) from error

        for group in groups:
            if group.error is None:
                return _members_of(
                    (member.client_id, _has_partition(member.assignment))
                    for member in group.members
                )
            if group.error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise StartError(refusal_text(self.id, self._elected_process, group.error))
        return Members()


def members_of(description: Any) -> Members:
    """Returns the members in Kafka's description of their group."""
    return _members_of(
        (
            member.client_id,
            member.assignment is not None and bool(member.assignment.topic_partitions),
        )
        for member in description.members
    )


def _members_of(members: Iterable[tuple[Any, bool]]) -> Members:
    """Returns the members. Input: each one's name, and whether it has the partition."""
    active = None
    others = []

    for name, has_partition in members:
        if has_partition:
            active = str(name)
        else:
            others.append(str(name))

    return Members(active, tuple(sorted(others)))


def _has_partition(assignment: bytes | None) -> bool:
    """Returns whether an assignment, as Kafka's protocol writes it, has a topic.

    Source: ConsumerProtocolAssignment: int16 version, int32 number of topics.
    """
    return int.from_bytes((assignment or b"")[2:6], "big") > 0
