"""`txlake schedule`: messages that wait for their time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pipelines.cli.options import empty_text, list_options, open_lake, print_list
from pipelines.cli.write_options import WriteOptions, write_options
from pipelines.output import JSON, TABLE, now_ms, print_json, print_records, span, to_machine
from txlake.protocol import CANCEL


@click.group()
def schedule() -> None:
    """Look at delayed messages, and cancel one."""


@schedule.command("list")
@list_options
@click.option("--level", type=click.IntRange(0), help="Only this delay level; 0: DELIVER_AT.")
def list_delayed(
    topic: str | None,
    group: str | None,
    level: int | None,
    limit: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """List the messages that wait for their time, the next first.

    They are counted by delay level, too.
    """
    from pipelines.operate.delays import COLUMNS, read_waiting

    waiting = read_waiting(open_lake(lake_path, conf), topic, group, level, limit)
    levels = [
        {
            "level": row["level"],
            "delay": _delay_text(row["level"], waiting.level_spans_ms),
            "waiting": row["waiting"],
            "next_at": row["next_at"],
        }
        for row in waiting.levels
    ]

    if output == JSON:
        print_json(
            {"count": waiting.count, "levels": _texts(levels), "messages": _texts(waiting.messages)}
        )
        return

    if levels and output == TABLE:
        print_records(list(levels[0]), levels, output, now_ms())
        click.echo()

    none = empty_text("no delayed messages", group=group, topic=topic, level=level)
    print_list(COLUMNS, waiting.messages, waiting.count, output, none)


def _delay_text(level: int | None, spans_ms: Sequence[int]) -> str:
    return "no level" if level is None else span(spans_ms[level - 1])


def _texts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: to_machine(name, value) for name, value in row.items()} for row in rows]


@schedule.command()
@click.argument("target")
@write_options
def cancel(target: str, writing: WriteOptions) -> None:
    """Cancel a delayed message.

    TARGET is a transaction id, <queue>-<offset> or half:<queue>-<offset> of a half, or
    schedule:<queue>-<offset>.
    """
    writing.command(CANCEL, target)
