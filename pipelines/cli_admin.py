"""`txlake dead`, `txlake schedule`, `txlake topic`: what stands still, and commands about it."""

from __future__ import annotations

import time
from typing import Any

import click

from pipelines.cli_lake import OperatorError, lake_options, open_lake, output_option
from pipelines.cli_records import (
    check_result,
    settings_and_lake,
    who,
    write_options,
    write_or_tell,
)
from pipelines.screen import print_json, print_rows
from txlake.protocol import CANCEL, CREATE_TOPIC, RESUME

_LIMIT = click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows to show."
)
_TOPIC = click.option("--topic", help="Only messages for this topic.")
_GROUP = click.option("--group", help="Only messages of this producer group.")


@click.group()
def dead() -> None:
    """Look at discarded halves and undeliverable messages, and resume them."""


@dead.command("list")
@_TOPIC
@_GROUP
@_LIMIT
@lake_options
@output_option
def list_dead(
    topic: str | None,
    group: str | None,
    limit: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """List what was given up or cannot be delivered, and was not ended or delivered since."""
    from pipelines.dead import COLUMNS, read_dead

    rows = [
        row
        for row in read_dead(open_lake(lake_path, conf))
        if topic in (None, row["real_topic"]) and group in (None, row["producer_group"])
    ]
    _print(COLUMNS, rows[:limit], len(rows), output, "nothing is dead")


@dead.command()
@click.argument("target")
@write_options
@output_option
def resume(target: str, **options: Any) -> None:
    """Make a discarded half pending again (half:<queue>-<offset>), or deliver a message that could
    not be delivered (undeliverable:<offset>)."""
    _command(RESUME, target, **options)


@click.group()
def schedule() -> None:
    """Look at delayed messages, and cancel one."""


@schedule.command("list")
@_TOPIC
@_GROUP
@click.option("--level", type=click.IntRange(0), help="Only this delay level; 0: DELIVER_AT.")
@_LIMIT
@lake_options
@output_option
def list_delayed(
    topic: str | None,
    group: str | None,
    level: int | None,
    limit: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """List the messages that wait for their time, the next first, and count them by level."""
    from pipelines.delays import COLUMNS, read_waiting
    from pipelines.explain.words import instant, span

    waiting = read_waiting(open_lake(lake_path, conf), topic, group, level, limit)
    levels = [
        {
            "level": row["level"],
            "delay": "DELIVER_AT"
            if row["level"] is None
            else span(waiting.level_spans_ms[row["level"] - 1]),
            "waiting": row["waiting"],
            "next_at": instant(row["next_at"]),
        }
        for row in waiting.levels
    ]
    if output == "json":
        print_json({"count": waiting.count, "levels": levels, "messages": _texts(waiting.messages)})
        return
    if levels:
        print_rows(list(levels[0]), [list(row.values()) for row in levels])
        click.echo()
    _print(COLUMNS, waiting.messages, waiting.count, output, "no delayed message waits")


@schedule.command()
@click.argument("target")
@write_options
@output_option
def cancel(target: str, **options: Any) -> None:
    """Cancel a delayed message: half:<queue>-<offset> or schedule:<queue>-<offset>."""
    _command(CANCEL, target, **options)


@click.group()
def topic() -> None:
    """Make real topics."""


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 10_000), required=True, help="Never fewer.")
@write_options
@output_option
def create(name: str, queues: int, **options: Any) -> None:
    """Make topic NAME, or give it more queues."""
    _command(CREATE_TOPIC, f"topic:{name}:{queues}", **options)


def _texts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give rows with their instants as text."""
    from pipelines.explain.words import instant

    return [
        {
            name: instant(value) if name in ("since", "deliver_at") and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _print(
    columns: tuple[str, ...], rows: list[dict[str, Any]], count: int, output: str, nothing: str
) -> None:
    texts = _texts(rows)
    if output == "json":
        print_json(texts)
        return
    if not rows:
        click.echo(nothing)
        return
    print_rows(columns, [[row[name] for name in columns] for row in texts])
    if count > len(rows):
        click.echo(f"{count - len(rows)} more: --limit shows more, --topic and --group choose")


def _command(
    name: str,
    target: str,
    reason: str,
    actor: str | None,
    dry_run: bool,
    wait_s: float,
    conf: str,
    output: str,
) -> None:
    """Write a command about a target that is there."""
    from checker.commands import TARGETS
    from pipelines import operator_records
    from pipelines.dead import undeliverable_at
    from pipelines.explain.find import find, find_nothing
    from pipelines.explain.report import nothing_found
    from pipelines.explain.target import Target
    from pipelines.trial import try_command

    actor, why = who(actor, reason)
    read = TARGETS[name].fullmatch(target)
    if read is None:
        allowed = " or ".join(_ALLOWED[name])
        raise click.UsageError(f"{target!r} is no target of {name}: {allowed}")
    settings, lake = settings_and_lake(conf)
    parts = read.groupdict()
    undeliverable: list[dict[str, Any]] = []
    if name == CREATE_TOPIC:
        found = find_nothing(lake)
    elif parts.get("place") is not None:
        found = find_nothing(lake)
        undeliverable, is_delivered = undeliverable_at(lake, int(parts["place"]))
        if not undeliverable:
            raise OperatorError(
                f"there is no offset {parts['place']} in TRANS_UNDELIVERABLE_TOPIC of the lake "
                f"{lake.path}: nothing was written"
            )
        undeliverable = [] if is_delivered else undeliverable
    else:
        place = Target(parts.get("source") or "half", int(parts["queue"]), int(parts["offset"]))
        found = find(lake, place)
        if not found.messages:
            raise OperatorError(nothing_found(found, place, lake.path))
    record = operator_records.command(name, target, actor, why)
    result = write_or_tell(
        settings,
        record,
        cluster_id="" if found.newest is None else found.newest.cluster_id,
        expected=try_command(lake, found, undeliverable, record, time.time_ns() // 1_000_000),
        epoch=found.epoch,
        dry_run=dry_run,
        wait_for=lambda offset: operator_records.wait_for_result(lake, offset, wait_s),
        output=output,
    )
    check_result(result, wait_s, dry_run)


_ALLOWED = {
    RESUME: ("half:<queue>-<offset>", "undeliverable:<offset>"),
    CANCEL: ("half:<queue>-<offset>", "schedule:<queue>-<offset>"),
    CREATE_TOPIC: ("a topic's name is [A-Za-z0-9._-]{1,127}",),
}

COMMANDS: list[click.Command] = [dead, schedule, topic]
