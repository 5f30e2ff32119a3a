"""Lists of messages: their options, and how they are printed."""

from __future__ import annotations

from typing import Any

import click

from pipelines.cli.options import Command, lake_options, output_option
from pipelines.screen import print_json, print_rows


def list_options(command: Command) -> Command:
    """Let a command choose the messages that it lists."""
    for option in (
        output_option,
        lake_options,
        click.option(
            "--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows to show."
        ),
        click.option("--group", help="Only messages of this producer group."),
        click.option("--topic", help="Only messages for this topic."),
    ):
        command = option(command)
    return command


def texts_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows with their instants as text."""
    from pipelines.explain.words import instant

    return [
        {
            name: instant(value) if name in ("since", "deliver_at") and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]


def print_list(
    columns: tuple[str, ...], rows: list[dict[str, Any]], count: int, output: str, nothing: str
) -> None:
    """Print the first of `count` rows, or the sentence `nothing`."""
    texts = texts_of(rows)
    if output == "json":
        print_json(texts)
        return
    if not rows:
        click.echo(nothing)
        return
    print_rows(columns, [[row[name] for name in columns] for row in texts])
    if count > len(rows):
        click.echo(f"{count - len(rows)} more: --limit shows more, --topic and --group choose")
