"""Lists: their options, and how they are printed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from pipelines.cli.options import Command, lake_options
from pipelines.screen import FORMATS, TABLE, Row, print_records


def rows_option(command: Command) -> Command:
    """Let a command print its rows for people or for programs."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default=TABLE, show_default=True,
        help="For people, or for programs.",
    )(command)  # fmt: skip


def limit_option(command: Command) -> Command:
    """Let a command cut its list."""
    return click.option(
        "--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows to show."
    )(command)


def list_options(command: Command) -> Command:
    """Let a command choose the messages that it lists."""
    for option in (
        rows_option,
        lake_options,
        limit_option,
        click.option("--group", help="Only messages of this producer group."),
        click.option("--topic", help="Only messages for this topic."),
    ):
        command = option(command)
    return command


def now_ms() -> int:
    """Returns the instant that tables are seen from."""
    return time.time_ns() // 1_000_000


def print_list(
    columns: Sequence[str],
    rows: Sequence[Row],
    count: int,
    output: str,
    nothing: str,
    only_data: Sequence[str] = (),
) -> None:
    """Print the first of `count` rows; a table without rows is the sentence `nothing`.

    Input: `only_data`: columns that a table leaves out.
    """
    if output == TABLE and not rows:
        click.echo(nothing)
        return
    if output == TABLE:
        columns = [name for name in columns if name not in only_data]
    print_records(columns, rows, output, now_ms())
    if count > len(rows):
        text = f"{count - len(rows)} more: --limit shows more, and filters choose"
        click.echo(text, err=output != TABLE)
