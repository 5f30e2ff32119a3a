"""Write an operator's record, or say what it would be: shared by all commands that write."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli_lake import Command, OperatorError, conf_option, whole_lake
from pipelines.screen import print_json

if TYPE_CHECKING:
    from pipelines.operator_records import Record
    from pipelines.settings import Settings
    from storage.lake import Lake


def write_options(command: Command) -> Command:
    """Let a command say who and why, and whether to write at all."""
    for decorate in (
        click.option("--reason", required=True, help="Why: it is stored with the record."),
        click.option("--actor", help="Who: the login user when it is not given."),
        click.option("--dry-run", is_flag=True, help="Write nothing; say what would be written."),
        click.option(
            "--wait-s", type=click.FloatRange(0), default=0.0, show_default=True,
            help="How long to wait for what the running job makes of it.",
        ),
    ):  # fmt: skip
        command = decorate(command)
    return conf_option(command)


def who(actor: str | None, reason: str) -> tuple[str, str]:
    """Give actor and reason as they are stored; an empty one is wrong usage."""
    name = _login() if actor is None else actor.strip()
    if not name:
        raise click.UsageError("--actor is empty: say who")
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why")
    return name, reason.strip()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise click.UsageError("the login user is not known: say who with --actor") from error


def settings_and_lake(conf: str) -> tuple[Settings, Lake]:
    """Open the lake that the job's settings name."""
    from pipelines.settings import load

    settings = load(conf)
    return settings, whole_lake(settings.lake.path)


def write_or_tell(
    settings: Settings,
    record: Record,
    *,
    cluster_id: str,
    expected: str,
    epoch: int,
    dry_run: bool,
    wait_for: Callable[[int], str | None],
    output: str,
) -> str | None:
    """Write a record and wait for its result, or say what it would be.

    Input: `expected`: what the rules make of it as the lake stands at `epoch`.
    Output: the result, when it was waited for and came.
    """
    from pipelines import operator_records

    topic = settings.kafka.topics()[record.kind]
    texts = record.texts()
    body = None if record.value is None else record.value.decode()
    told: dict[str, Any] = {
        "topic": topic, "partition": record.partition, "offset": None, "body": body,
        "headers": texts, "expected": expected, "epoch": epoch, "result": None,
    }  # fmt: skip
    result: str | None = None
    if not dry_run:
        told["offset"] = operator_records.write(settings.kafka, record, cluster_id)
        result = told["result"] = wait_for(told["offset"])
    if output == "json":
        print_json(told)
        return result
    written = f"would write to {topic} partition {record.partition}"
    if not dry_run:
        written = f"written to {topic} partition {record.partition} offset {told['offset']}"
    shown = [*([] if body is None else [f"body {body}"])]
    shown += [f"{name} {value}" for name, value in texts.items()]
    click.echo(f"{written}: {'; '.join(shown)}")
    click.echo(f"as the lake stands at epoch {epoch}: {expected}")
    if result is not None:
        click.echo(f"the job says: {result}")
    return result


def check_result(result: str | None, wait_s: float, dry_run: bool) -> None:
    """End with exit code 1 when a result was waited for and is a refusal, or did not come."""
    from pipelines.explain.words import CONFLICTS, REFUSALS

    if dry_run or wait_s <= 0:
        return
    if result is None:
        raise OperatorError(
            f"no result within {wait_s:g} s: the record is written; is the job running?"
        )
    if result in REFUSALS or result in CONFLICTS:
        raise OperatorError(f"it changed nothing: {result}")
