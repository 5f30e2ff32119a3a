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
from pipelines.settings import KafkaSettings
from txlake import protocol as p

PRODUCER, JOB, OPERATOR, CONSUMER, METRICS = "producer", "job", "operator", "consumer", "metrics"
ROLES: Final = (PRODUCER, JOB, OPERATOR, CONSUMER, METRICS)
TOPIC, GROUP = "topic", "group"
# Resources of the table below, by their names in the settings.
_HALF, _OP, _SCHEDULE, _ADMIN = "half_topic", "op_topic", "schedule_topic", "admin_topic"
_CHECKS, _OWN_CHECKS, _DRIVERS = "every check topic", "the group's check topic", "the lake's group"
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
    _Rule(OPERATOR, (_OP,), ("READ", "WRITE"), "`tx commit`, `tx rollback`; `status`"),
    _Rule(OPERATOR, (_ADMIN,), ("READ", "WRITE"), "all other commands that write; `status`"),
    _Rule(OPERATOR, (_HALF, _SCHEDULE), ("READ",), "`status`: how far, how long the job is behind"),
    _Rule(OPERATOR, (_CHECKS,), ("DESCRIBE", "CREATE"), "`check topic`: makes a group's"),
    _Rule(OPERATOR, (_CHECKS,), ("DESCRIBE",), "`groups`: who listens for checks", GROUP),
    _Rule(OPERATOR, (_DRIVERS,), ("DESCRIBE",), "which driver is active", GROUP),
    _Rule(METRICS, _ALL, ("DESCRIBE",), "`status` and `top`: how far the job is behind"),
    _Rule(METRICS, (_CHECKS,), ("DESCRIBE",), "who listens for checks", GROUP),
)


@dataclass(frozen=True)
class Right:
    """The operations that a role may do with one resource of Kafka.

    `kind`: topic or group; `is_prefix`: `name` is the prefix of the resources' names; `why`: the
    purpose. `group`: the producer group, of a producer.
    """

    role: str
    kind: str
    name: str
    is_prefix: bool
    operations: tuple[str, ...]
    why: str
    group: str = ""


def group_id(lake_path: str, admin_topic: str) -> str:
    """Returns the id of the consumer group that a lake's drivers form."""
    digest = hashlib.sha256(f"{lake_path}\n{admin_topic}".encode()).hexdigest()
    return f"txlake-driver-{digest[:_DIGEST_CHARACTERS]}"


def acls(
    kafka: KafkaSettings, lake_path: str, roles: Iterable[str], groups: Iterable[str] = ()
) -> list[Right]:
    """Returns the rights of roles, in the table's order.

    Input: `groups`: the producer groups; the role of a producer is each group's own.
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


def table_rows() -> list[dict[str, str]]:
    """Returns the table as documents show it: resources by their names in the settings."""
    return [
        {
            "role": rule.role,
            "resource": f"{rule.kind}: {', '.join(rule.resources)}",
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
        servers,
        "--command-config",
        "admin.properties",
        "--add",
        "--allow-principal",
        principal,
        *operations,
        f"--{right.kind}",
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
