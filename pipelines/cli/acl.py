"""`txlake acl`: the rights that each role needs, in Kafka and in the lake's store."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pipelines.cli.options import conf_option, refuse_if, settings_of
from pipelines.output import print_line

if TYPE_CHECKING:
    from pipelines.kafka_client.acls import Right

_FORMS = ("commands", "table", "json")


@click.group()
def acl() -> None:
    """Print the rights that each role needs."""


@acl.command("print")
@conf_option
@click.option("--role", "roles", multiple=True, help="Only this role; can be repeated.")
@click.option("--group", "groups", multiple=True, help="A producer group; can be repeated.")
@click.option(
    "--principal",
    "principals",
    multiple=True,
    metavar="ROLE=User:NAME",
    help="The user of a role or a producer group.  [default: User:txlake-ROLE, User:GROUP]",
)
@click.option(
    "--producer-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Let each producer group write at most N bytes a second: Kafka's quota for its user.",
)
@click.option("--store", is_flag=True, help="Policies of S3 instead, as JSON, by role.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(_FORMS),
    default=_FORMS[0],
    show_default=True,
    help="Lines for a shell, a table for people, or JSON.",
)
def print_acls(
    conf: str,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    principals: tuple[str, ...],
    producer_bytes: int | None,
    store: bool,
    output: str,
) -> None:
    """Print Kafka's ACLs as kafka-acls.sh adds them.

    Nothing is reached or written.
    """
    from pipelines.kafka_client.acls import (
        PRODUCER,
        PUBLISHER,
        ROLES,
        acls,
        command_of,
        quota_command,
    )
    from storage.files.s3_policy import s3_policy
    from txlake.protocol import GROUP_PATTERN, matches

    settings = settings_of(conf)
    for role in roles:
        if role not in ROLES:
            raise click.UsageError(f"--role {role}: the roles are {', '.join(ROLES)}")
    for group in groups:
        if not matches(GROUP_PATTERN, group):
            raise click.UsageError(f"--group {group!r}: a group's name is {GROUP_PATTERN}")

    chosen = roles or ROLES
    refuse_if(
        {
            "--producer-bytes is printed as a command: without --store and -o": bool(producer_bytes)
            and (store or output != _FORMS[0]),
            "--producer-bytes is about producer groups: name them, --group NAME": bool(
                producer_bytes
            )
            and not (groups and PRODUCER in chosen),
        }
    )

    if store:
        location = settings.lake.location()
        click.echo(json.dumps({role: s3_policy(location, role) for role in chosen}, indent=2))
        return

    principal_by_name = _principals(principals, (*chosen, *groups))
    publishers = settings.publish.values()
    rights = acls(settings.kafka, settings.lake.location().path, chosen, groups, publishers)
    rows = [
        {**asdict(right), "principal": _principal(right, principal_by_name)} for right in rights
    ]

    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return

    servers = settings.kafka.bootstrap_servers
    for role in chosen:
        rights_of_role = [
            (right, row) for right, row in zip(rights, rows, strict=True) if right.role == role
        ]

        if not rights_of_role:
            needed = "it reads the lake alone, and needs no right in Kafka"
            if role == PRODUCER:
                needed = "name each producer group: --group NAME"
            elif role == PUBLISHER:
                needed = "the settings have no [publish.NAME]"
            print_line(f"# {role}: {needed}")
        for right, row in rights_of_role:
            name = f"{right.name}*" if right.is_prefix else right.name
            text = command_of(right, row["principal"], servers)
            if output != "commands":
                kind = right.kind.replace("_", " ")
                operations = ", ".join(right.operations)
                text = f"{row['principal']}  {kind} {name}  {operations}  ({right.why})"
            print_line(text)

        if producer_bytes:
            for user in sorted({row["principal"] for right, row in rights_of_role if right.group}):
                print_line(quota_command(user, servers, producer_bytes))


def _principals(texts: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    principals = {}

    for text in texts:
        name, _, principal = text.partition("=")
        if name not in names or not principal.partition(":")[2]:
            raise click.UsageError(
                f"--principal {text}: ROLE=User:NAME, of a role or a group that is printed"
            )
        principals[name] = principal

    return principals


def _principal(right: Right, principal_by_name: dict[str, str]) -> str:
    if right.group:
        return (
            principal_by_name.get(right.group)
            or principal_by_name.get(right.role)
            or f"User:{right.group}"
        )
    return principal_by_name.get(right.role, f"User:txlake-{right.role}")
