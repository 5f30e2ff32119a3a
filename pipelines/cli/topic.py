"""`txlake topic`: real topics."""

from __future__ import annotations

import click

from pipelines.cli.option_types import ByteSize, Duration
from pipelines.cli.options import (
    lake_options,
    limit_option,
    open_lake,
    print_list,
    rows_option,
    settings_of,
    stack_options,
)
from pipelines.cli.write_options import WriteOptions, write_options
from pipelines.errors import OperatorError
from pipelines.output import TABLE
from txlake.protocol import (
    ALTER_TOPIC,
    CREATE_TOPIC,
    SYSTEM_REAL_TOPICS,
    TOPIC_PATTERN,
    TopicTarget,
    matches,
)

# For a command that sets the retention of a topic.
_retention_options = stack_options(
    click.option(
        "--retention",
        "retention_ms",
        type=Duration(can_be_forever=True),
        help="How long to keep messages: 36h, forever.",
    ),
    click.option(
        "--retention-bytes", type=ByteSize(), help="How many bytes to keep on disk: 10GiB, forever."
    ),
)


@click.group()
def topic() -> None:
    """Look at real topics and their messages; make a topic."""


@topic.command("list")
@lake_options
@limit_option
@rows_option
def list_topics(lake_path: str | None, conf: str | None, limit: int, output: str) -> None:
    """List the real topics: what they hold and how long they keep it."""
    from pipelines.health.topics import COLUMNS, read_topics

    lake = open_lake(lake_path, conf)
    default = None if conf is None else settings_of(conf).maintenance_limits().topics
    rows = read_topics(lake, default)
    print_list(COLUMNS, rows[:limit], len(rows), output, "no topics yet")


@topic.command()
@click.argument("name")
@lake_options
@rows_option
def describe(name: str, lake_path: str | None, conf: str | None, output: str) -> None:
    """Show the queues of topic NAME: where they begin and end."""
    from pipelines.health.topics import QUEUE_COLUMNS, read_queues

    rows = read_queues(open_lake(lake_path, conf), name)
    print_list(QUEUE_COLUMNS, rows, len(rows), output, "")


@topic.command()
@click.argument("name")
@click.option("--tail", is_flag=True, help="The newest messages instead of the oldest.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue.")
@click.option("--from-offset", type=click.IntRange(0), help="Only from this offset on.")
@click.option("--keys", help="Only messages with these KEYS (an order number, say).")
@click.option(
    "--body",
    "form",
    type=click.Choice(["text", "json", "hex"]),
    default="text",
    show_default=True,
    help="How bodies are shown; json: as text where a body is none.",
)
@lake_options
@limit_option
@rows_option
def read(
    name: str,
    tail: bool,
    queue_id: int | None,
    from_offset: int | None,
    keys: str | None,
    form: str,
    lake_path: str | None,
    conf: str | None,
    limit: int,
    output: str,
) -> None:
    """Show messages of topic NAME, in the order of their delivery.

    A message of an epoch that is not committed yet is not shown.
    """
    from pipelines.cli.cells import plain_rows
    from pipelines.health.messages import Choice, read_messages

    choice = Choice(limit, tail, queue_id, from_offset, keys)
    messages, has_more = read_messages(open_lake(lake_path, conf), name, choice)
    columns, rows = plain_rows(messages, output, form)

    hidden_columns = ["born_at", "tags", "properties", "epoch"]
    if name not in SYSTEM_REAL_TOPICS:  # in these it is the topic that a message was sent to
        hidden_columns += ["real_topic", "reason"]

    print_list(columns, rows, len(rows), output, "no matching messages", hidden_columns)

    if has_more:
        click.echo("there are more messages: --limit shows more", err=output != TABLE)


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 10_000), required=True, help="Never fewer.")
@_retention_options
@write_options
def create(
    name: str,
    queues: int,
    retention_ms: int | None,
    retention_bytes: int | None,
    writing: WriteOptions,
) -> None:
    """Make topic NAME, or give it more queues."""
    if not matches(TOPIC_PATTERN, name):
        raise click.UsageError(f"{name!r} is no name of a topic: {TOPIC_PATTERN} is allowed")

    targets = _retention_targets(name, retention_ms, retention_bytes, writing)
    commands = [(CREATE_TOPIC, str(TopicTarget(name, queues)))]

    # A dry run would try ALTER_TOPIC on a topic that does not exist yet.
    if not writing.dry_run:
        commands += [(ALTER_TOPIC, target) for target in targets]
    writing.commands(commands)


@topic.command()
@click.argument("name")
@_retention_options
@write_options
def alter(
    name: str, retention_ms: int | None, retention_bytes: int | None, writing: WriteOptions
) -> None:
    """Set how long topic NAME keeps its messages.

    Maintenance deletes what is older.
    """
    from pipelines.health.topics import require_topic

    targets = _retention_targets(name, retention_ms, retention_bytes, writing)
    if not targets:
        raise click.UsageError("name --retention, --retention-bytes, or both")

    require_topic(writing.lake, name)
    writing.commands((ALTER_TOPIC, target) for target in targets)


def _retention_targets(
    name: str, retention_ms: int | None, retention_bytes: int | None, writing: WriteOptions
) -> list[str]:
    """Returns the targets of ALTER_TOPIC, one for each retention that is not None."""
    from pipelines.operate.topics import topic_limits

    try:
        targets = topic_limits(writing.settings, name, retention_ms, retention_bytes)
    except OperatorError as error:
        raise click.UsageError(f"--retention: {error}") from error

    return [str(target) for target in targets]
