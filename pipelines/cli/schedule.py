"""`txlake schedule`: messages that wait for their time."""

from __future__ import annotations

import click

from pipelines.cli.lists import list_options, print_list, texts_of
from pipelines.cli.options import open_lake
from pipelines.cli.writing import Writing, writes
from pipelines.screen import print_json, print_rows
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
    """List the messages that wait for their time, the next first, and count them by level."""
    from pipelines.explain.words import instant, span
    from pipelines.operate.delays import COLUMNS, read_waiting

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
        messages = texts_of(waiting.messages)
        print_json({"count": waiting.count, "levels": levels, "messages": messages})
        return
    if levels:
        print_rows(list(levels[0]), [list(row.values()) for row in levels])
        click.echo()
    print_list(COLUMNS, waiting.messages, waiting.count, output, "no delayed message waits")


@schedule.command()
@click.argument("target")
@writes
def cancel(target: str, writing: Writing) -> None:
    """Cancel a delayed message: half:<queue>-<offset> or schedule:<queue>-<offset>."""
    writing.command(CANCEL, target)
