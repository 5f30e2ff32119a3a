"""`txlake topic`: real topics."""

from __future__ import annotations

import click

from pipelines.cli.writing import Writing, writes
from txlake.protocol import CREATE_TOPIC, TOPIC_PATTERN, TopicTarget, matches


@click.group()
def topic() -> None:
    """Make real topics."""


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 10_000), required=True, help="Never fewer.")
@writes
def create(name: str, queues: int, writing: Writing) -> None:
    """Make topic NAME, or give it more queues."""
    target = str(TopicTarget(name, queues))
    if not matches(TOPIC_PATTERN, name):
        raise click.UsageError(
            f"{target!r} is no target of {CREATE_TOPIC}: a topic's name is {TOPIC_PATTERN}"
        )
    writing.command(CREATE_TOPIC, target)
