"""Kafka's rights (ACLs) that each role needs, and which of them a client lacks.

One table, `_RIGHTS`, has all of them. `txlake acl print` prints it; a start of the job, and a
command that writes, compare it with the rights that Kafka grants. READ, WRITE, DELETE and ALTER
include DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, TopicCollection

from pipelines.errors import KafkaRefusedError
from pipelines.kafka_client.connection import REQUEST_TIMEOUT_S, Cluster, error_code
from pipelines.settings import KafkaSettings, PublisherSettings
from pipelines.settings.publish import TOPIC_PLACE
from txlake import protocol as p

PRODUCER, JOB, OPERATOR, CONSUMER, METRICS = "producer", "job", "operator", "consumer", "metrics"
PUBLISHER = "publisher"
ROLES: Final = (PRODUCER, JOB, OPERATOR, CONSUMER, METRICS, PUBLISHER)
TOPIC, GROUP, TRANSACTIONAL_ID = "topic", "group", "transactional_id"
PUBLISHER_IDS: Final = "txlake-publish-"  # begins a publisher's group and its transactional id
# Resources of the table below, by their names in the settings.
_HALF, _OP, _SCHEDULE, _ADMIN = "half_topic", "op_topic", "schedule_topic", "admin_topic"
_CHECKS, _OWN_CHECKS, _DRIVERS = "every check topic", "the group's check topic", "the lake's group"
_DESTINATIONS, _PROGRESS, _IDS = "every destination", "progress_topic", "the publishers' ids"
_PUBLISHING: Final = (_DESTINATIONS, _PROGRESS, _IDS)
_ALL: Final = (_HALF, _OP, _SCHEDULE, _ADMIN)
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True)
class _Rule:
    """The operations of a role on some resources. `kind`: of the resources."""

    role: str
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    why: str
    kind: str = TOPIC


_RIGHTS: Final = (
    _Rule(PRODUCER, (_HALF, _OP), ("WRITE",), "halves and their ends"),
    _Rule(PRODUCER, (_SCHEDULE,), ("WRITE",), "messages without a transaction"),
    _Rule(PRODUCER, (_OWN_CHECKS,), ("READ", "CREATE"), "checks; the first producer makes it"),
    _Rule(PRODUCER, (_OWN_CHECKS,), ("READ",), "its producers share the checks", GROUP),
    _Rule(
        JOB,
        (_HALF, _OP, _SCHEDULE),
        ("READ", "DESCRIBE_CONFIGS", "CREATE"),
        "lands them; makes them for a new lake",
    ),
    _Rule(
        JOB,
        (_ADMIN,),
        ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE"),
        "lands commands; asks the broker for its time",
    ),
    _Rule(JOB, (_CHECKS,), ("WRITE",), "asks producer groups"),
    _Rule(JOB, (_DRIVERS,), ("READ",), "Kafka elects the active driver", GROUP),
    _Rule(
        OPERATOR,
        (_OP,),
        ("READ", "WRITE", "DESCRIBE_CONFIGS"),
        "`tx commit`, `tx rollback`; `status`",
    ),
    _Rule(
        OPERATOR,
        (_ADMIN,),
        ("READ", "WRITE", "DESCRIBE_CONFIGS"),
        "all other commands that write; `status`",
    ),
    _Rule(
        OPERATOR,
        (_HALF, _SCHEDULE),
        ("READ", "DESCRIBE_CONFIGS"),
        "`status`: how far, how long the job is behind",
    ),
    _Rule(OPERATOR, (_CHECKS,), ("DESCRIBE", "CREATE"), "`check topic`: makes a group's"),
    _Rule(OPERATOR, (_CHECKS,), ("DESCRIBE",), "`groups`: who listens for checks", GROUP),
    _Rule(OPERATOR, (_DRIVERS,), ("DESCRIBE",), "which driver is active", GROUP),
    _Rule(
        METRICS,
        _ALL,
        ("DESCRIBE", "DESCRIBE_CONFIGS"),
        "`status` and `top`: how far the job is behind",
    ),
    _Rule(METRICS, (_CHECKS,), ("DESCRIBE",), "who listens for checks", GROUP),
    _Rule(METRICS, (_DRIVERS,), ("DESCRIBE",), "which driver is active", GROUP),
    _Rule(JOB, (_PROGRESS,), ("READ",), "retention waits for publishers"),
    _Rule(JOB, (_IDS,), ("DESCRIBE",), "its metrics say which publishers run", GROUP),
    _Rule(
        OPERATOR,
        (_DESTINATIONS,),
        ("READ", "DESCRIBE_CONFIGS", "CREATE"),
        "`verify --published`; `tx explain`; `publish adopt`",
    ),
    _Rule(
        OPERATOR,
        (_PROGRESS,),
        ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE"),
        "`publish skip`, `publish adopt`; `status`",
    ),
    _Rule(OPERATOR, (_IDS,), ("DESCRIBE",), "`status`: which publishers run", GROUP),
    _Rule(OPERATOR, (_IDS,), ("WRITE",), "`publish skip`, `publish adopt`", TRANSACTIONAL_ID),
    _Rule(METRICS, (_PROGRESS,), ("READ",), "`status` and `top`: how far publishers are"),
    _Rule(METRICS, (_IDS,), ("DESCRIBE",), "`status` and `top`: which publishers run", GROUP),
    _Rule(
        PUBLISHER,
        (_DESTINATIONS,),
        ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE", "ALTER"),
        "writes messages; reads the last ones; makes topics, and lets them grow",
    ),
    _Rule(
        PUBLISHER,
        (_PROGRESS,),
        ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE"),
        "how far it is",
    ),
    _Rule(PUBLISHER, (_IDS,), ("READ",), "Kafka elects the active process", GROUP),
    _Rule(PUBLISHER, (_IDS,), ("WRITE",), "its transactions", TRANSACTIONAL_ID),
)


@dataclass(frozen=True)
class Right:
    """The operations that a role may do with one resource of Kafka.

    `kind`: topic, group or transactional_id; `is_prefix`: `name` is the prefix of the resources'
    names; `why`: the purpose. `group`: the producer group, of a producer; `servers`: the Kafka, of
    a publisher's.
    """

    role: str
    kind: str
    name: str
    is_prefix: bool
    operations: tuple[str, ...]
    why: str
    group: str = ""
    servers: str = ""


def group_id(lake_path: str, admin_topic: str) -> str:
    """Returns the id of the consumer group that a lake's drivers form."""
    digest = hashlib.sha256(f"{lake_path}\n{admin_topic}".encode()).hexdigest()
    return f"txlake-driver-{digest[:_DIGEST_CHARACTERS]}"


def acls(
    kafka: KafkaSettings,
    lake_path: str,
    roles: Iterable[str],
    groups: Iterable[str] = (),
    publishers: Iterable[PublisherSettings] = (),
) -> list[Right]:
    """Returns the rights of roles, in the table's order.

    Input: `groups`: the producer groups; the role of a producer is each group's own. `publishers`:
    those that roles have to do with.
    """
    checks = kafka.check_topic_prefix
    names = {_CHECKS: checks, _DRIVERS: group_id(lake_path, kafka.admin_topic)}
    rights = []

    for role in roles:
        for group in groups if role == PRODUCER else ("",):
            own_names = {**names, _OWN_CHECKS: p.check_topic(group, checks)}
            for rule in _RIGHTS:
                if rule.role != role:
                    continue
                if rule.resources[0] in _PUBLISHING:
                    rights += _publishing_rights(rule, publishers)
                    continue
                for resource in rule.resources:
                    right = Right(
                        role,
                        rule.kind,
                        own_names.get(resource) or str(getattr(kafka, resource)),
                        resource == _CHECKS,
                        rule.operations,
                        rule.why,
                        group,
                    )
                    rights.append(right)

    return rights


def _publishing_rights(rule: _Rule, publishers: Iterable[PublisherSettings]) -> list[Right]:
    """Returns the rights that a rule gives on what publishers have, each once."""
    (resource,) = rule.resources
    rights: dict[Right, None] = {}

    for publisher in publishers:
        names = {_PROGRESS: [(publisher.progress_topic, False)], _IDS: [(PUBLISHER_IDS, True)]}
        for name, is_prefix in names.get(resource) or _destinations(publisher):
            right = Right(
                rule.role,
                rule.kind,
                name,
                is_prefix,
                rule.operations,
                rule.why,
                servers=publisher.bootstrap_servers,
            )
            rights[right] = None

    return list(rights)


def _destinations(publisher: PublisherSettings) -> list[tuple[str, bool]]:
    """Returns the names of the destinations, each with whether it is a prefix.

    Where the settings name no topics, any can come: those of a prefix, or all of them.
    """
    if publisher.topics:
        return [(publisher.destination_of(topic), False) for topic in publisher.topics]

    prefix = publisher.destination.partition(TOPIC_PLACE)[0]
    return [(prefix, True)] if prefix else [("*", False)]


def table_rows() -> list[dict[str, str]]:
    """Returns the table as documents show it: resources by their names in the settings."""
    return [
        {
            "role": rule.role,
            "resource": f"{rule.kind.replace('_', ' ')}: {', '.join(rule.resources)}",
            "operations": ", ".join(rule.operations),
            "what for": rule.why,
        }
        for rule in _RIGHTS
    ]


def command_of(right: Right, principal: str, servers: str) -> str:
    """Returns the line for a shell that gives a right to a principal."""
    operations = [word for name in right.operations for word in ("--operation", name)]
    pattern = ["--resource-pattern-type", "prefixed"] if right.is_prefix else []
    words = [
        "kafka-acls.sh",
        "--bootstrap-server",
        right.servers or servers,
        "--command-config",
        "admin.properties",
        "--add",
        "--allow-principal",
        principal,
        *operations,
        f"--{right.kind.replace('_', '-')}",
        right.name,
        *pattern,
    ]
    return shlex.join(words)


def quota_command(principal: str, servers: str, bytes_a_second: int) -> str:
    """Returns the line for a shell that limits the write rate of a principal's producers.

    Source: Kafka's `producer_byte_rate`. A broker delays a producer that writes more, and no other.
    """
    words = [
        "kafka-configs.sh",
        "--bootstrap-server",
        servers,
        "--command-config",
        "admin.properties",
        "--alter",
        "--add-config",
        f"producer_byte_rate={bytes_a_second}",
        "--entity-type",
        "users",
        "--entity-name",
        principal.partition(":")[2],
    ]
    return shlex.join(words)


def require_rights(cluster: Cluster, servers: str, wanted: Mapping[str, Iterable[str]]) -> None:
    """Checks the rights of this client on topics; topics that do not exist are skipped.

    Input: the operations that are needed, by topic.
    Errors: KafkaRefusedError that names every right that is missing; KafkaAwayError.
    """
    futures = cluster.admin.describe_topics(
        TopicCollection(list(wanted)),
        include_authorized_operations=True,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    missing = []

    for topic, future in futures.items():
        granted: set[str] = set()
        try:
            description = cluster.result_of(
                future, "what this client may do", KafkaError.UNKNOWN_TOPIC_OR_PART
            )
            operations = (description and description.authorized_operations) or ()
            granted = {operation.name for operation in operations}
            if not granted:  # there is no such topic, or the broker does not tell
                continue
        except KafkaRefusedError as error:
            if error_code(error.__cause__) != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise

        lacking = [operation for operation in wanted[topic] if operation not in granted]
        if lacking:
            missing.append(f"{' and '.join(lacking)} on topic {topic}")

    if missing:
        raise missing_acl(servers, "; ".join(missing))


def missing_acl(servers: str, rights: str) -> KafkaRefusedError:
    """Returns the error of a client that lacks rights, as `READ on topic x`."""
    return KafkaRefusedError(
        f"Kafka at {servers} refuses this client {rights}; `txlake acl print` prints the commands "
        "that give each role its rights"
    )


def job_topics(kafka: KafkaSettings) -> dict[str, tuple[str, ...]]:
    """Returns the operations that the job needs on its topics once they exist."""
    return {
        right.name: tuple(operation for operation in right.operations if operation != "CREATE")
        for right in acls(kafka, "", [JOB])
        if right.kind == TOPIC and not right.is_prefix
    }
