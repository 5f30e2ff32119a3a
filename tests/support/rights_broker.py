"""A real broker with an authorizer: who has no right may do nothing."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from pipelines.jvm.jars import class_path
from pipelines.jvm.java import java_binary
from pipelines.local_broker.broker import Broker
from pipelines.local_server.server import HOST
from tests.support.kafka_admin import admin_client
from tests.support.wait import DEADLINE_S, wait_until

PASSWORD = "of a test"
_ANY: dict[str, Any] = {"name": None, "principal": None, "host": None}


class RightsBroker(Broker):
    """A broker on loopback: on its own listener everybody is its administrator.

    On the other one clients say who they are. Input: `users`: all there are.
    """

    PORTS = 3

    def __init__(self, folder: Path, users: Iterable[str]) -> None:
        users = "".join(f' user_{name}="{PASSWORD}"' for name in users)
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"

        super().__init__(
            folder,
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "false",
                "super.users": "User:ANONYMOUS",
                "listener.name.roles.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.roles.plain.sasl.jaas.config": f"{login} required{users};",
            },
        )

    @property
    def roles_server(self) -> str:
        """Return where clients say who they are."""
        return f"{HOST}:{self._ports[2]}"

    def client(self, user: str) -> dict[str, str]:
        """Return [kafka.client] of a user."""
        return {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def _prepare(self, java_command: list[str]) -> list[str]:
        own = f"BROKER://{self.bootstrap_servers},ROLES://{self.roles_server}"
        self._properties |= {
            "listeners": f"{own},CONTROLLER://{HOST}:{self._ports[1]}",
            "advertised.listeners": own,
            "listener.security.protocol.map": (
                "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,ROLES:SASL_PLAINTEXT"
            ),
        }
        return super()._prepare(java_command)

    def configure(self, line: str) -> None:
        """Run a line of kafka-configs.sh, as the broker's administrator."""
        tool, *words = shlex.split(line)
        assert tool == "kafka-configs.sh"
        servers = words.index("--bootstrap-server") + 1
        words[servers] = self.bootstrap_servers
        at = words.index("--command-config")  # the administrator needs no login here
        del words[at : at + 2]
        java = [str(java_binary()), "-cp", class_path([self.JARS])]
        command = [*java, "kafka.admin.ConfigCommand", *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def give(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add rights, as `txlake acl print -o json` has them, and wait until they hold."""
        admin = admin_client(self.bootstrap_servers)
        bindings = [AclBinding(*of_row) for of_row in _parts(rows)]
        for future in admin.create_acls(bindings).values():
            future.result(DEADLINE_S)
        wanted = {_key(binding) for binding in bindings}
        wait_until(lambda: wanted <= _held(admin), "the rights hold")

    def take(self, rows: Iterable[dict[str, Any]]) -> None:
        """Take rights away, and wait until they do not hold any more."""
        admin = admin_client(self.bootstrap_servers)
        filters = [AclBindingFilter(*of_row) for of_row in _parts(rows)]
        for future in admin.delete_acls(filters).values():
            future.result(DEADLINE_S)
        taken = {_key(one) for one in filters}
        wait_until(lambda: not taken & _held(admin), "the rights are gone")


def _parts(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what makes a binding of each operation of the rows."""
    return [
        (
            ResourceType[row["kind"].upper()],
            row["name"],
            ResourcePatternType["PREFIXED" if row["is_prefix"] else "LITERAL"],
            row["principal"],
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for row in rows
        for operation in row["operations"]
    ]


def _held(admin: AdminClient) -> set[tuple[object, ...]]:
    everything = AclBindingFilter(
        restype=ResourceType.ANY,
        resource_pattern_type=ResourcePatternType.ANY,
        operation=AclOperation.ANY,
        permission_type=AclPermissionType.ANY,
        **_ANY,
    )
    return {_key(one) for one in admin.describe_acls(everything).result(DEADLINE_S)}


def _key(binding: AclBinding | AclBindingFilter) -> tuple[object, ...]:
    return (
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.operation,
    )
