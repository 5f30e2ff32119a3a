"""`txlake publish`: committed messages to Kafka, too."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pipelines.cli.options import (
    conf_of,
    conf_option,
    print_list,
    refuse_if,
    rows_option,
    settings_of,
    stack_options,
)
from pipelines.cli.stop_limit import StopLimit
from pipelines.cli.write_options import actor_and_reason
from pipelines.output import now_ms, print_line

if TYPE_CHECKING:
    from pipelines.publish.operate import Change, Operator


@click.group(invoke_without_command=True)
@conf_of("The job's settings.")
@click.option("--name", help="Which [publish.NAME]; without it the only one.")
@click.option("--quiet", is_flag=True, help="Print warnings only.")
@click.pass_context
def publish(context: click.Context, conf: str | None, name: str | None, quiet: bool) -> None:
    """Publish committed messages to Kafka, until Ctrl-C.

    Of several processes of one name Kafka elects the active one; the others stand by.
    """
    if context.invoked_subcommand is not None:
        # TXLAKE_CONF is of the command behind, too.
        is_named = context.get_parameter_source("conf") is ParameterSource.COMMANDLINE
        refuse_if(
            {
                "options stand behind the command: txlake publish status --conf FILE": bool(
                    is_named or name or quiet
                )
            }
        )
        return
    if conf is None:
        raise click.UsageError("name the job's settings: --conf FILE")

    from pipelines.publish.process_memory import look_for_garbage_rarely, share_one_heap

    share_one_heap()
    from pipelines import logs
    from pipelines.publish.process import PublisherProcess, publisher_of
    from pipelines.settings import warn_of_open_secrets

    settings = settings_of(conf)
    logs.begin("warning" if quiet else settings.log.level, settings.log.format)
    warn_of_open_secrets(conf)
    process = PublisherProcess(settings, publisher_of(settings, name))

    limit = StopLimit("the open transaction is given up, and nothing is lost")

    def stop(*_: object) -> None:
        limit.begin()
        process.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    look_for_garbage_rarely()
    try:
        process.run()
    finally:
        limit.end()


_name_option = click.option("--name", help="Which [publish.NAME]; without it the only one.")


@publish.command()
@conf_option
@click.option("--name", help="Only this publisher.")
@rows_option
def status(conf: str, name: str | None, output: str) -> None:
    """Show how far publishers are behind, which process is active, and why one has stopped."""
    from pipelines.publish.process import publisher_of
    from pipelines.publish.status import COLUMNS, read_publishers, topic_rows

    settings = settings_of(conf)
    names = None if name is None else [publisher_of(settings, name).name]
    rows = topic_rows(read_publishers(settings, names), now_ms())

    print_list(COLUMNS, rows, len(rows), output, "no publishers or topics yet")


_change_options = stack_options(
    conf_option,
    _name_option,
    click.option("--dry-run", is_flag=True, help="Write nothing; print what would be written."),
    click.option("--actor", help="Who: the login user when it is not given."),
    click.option("--reason", required=True, help="Why: it is stored with the record."),
)


@publish.command()
@click.option("--topic", required=True, help="The real topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), required=True)
@click.option("--offset", type=click.IntRange(0), required=True, help="What is published next.")
@click.option("--to", "last", type=click.IntRange(0), help="The last one.  [default: one message]")
@_change_options
def skip(
    topic: str,
    queue_id: int,
    offset: int,
    last: int | None,
    conf: str,
    name: str | None,
    dry_run: bool,
    actor: str | None,
    reason: str,
) -> None:
    """Go past messages that come next in a queue: they are never published."""
    operator = _operator(conf, name, actor, reason)
    change = operator.skip(
        topic, queue_id, offset, offset if last is None else last, dry_run=dry_run
    )
    _print(change, dry_run=dry_run)


@publish.command()
@click.option(
    "--position",
    type=click.Choice(["published", "earliest", "latest"]),
    required=True,
    help="Behind the last records, which must be this lake's messages; or where its tables begin "
    "or end.",
)
@_change_options
def adopt(
    position: str,
    conf: str,
    name: str | None,
    dry_run: bool,
    actor: str | None,
    reason: str,
) -> None:
    """Say where this lake goes on in Kafka topics that another lake, or nobody known, published.

    Whoever published there before can write no more.
    """
    operator = _operator(conf, name, actor, reason)
    _print(operator.adopt(position, dry_run=dry_run), dry_run=dry_run)


def _operator(conf: str, name: str | None, actor: str | None, reason: str) -> Operator:
    from pipelines.publish.operate import Operator
    from pipelines.publish.process import publisher_of

    settings = settings_of(conf)
    publisher = publisher_of(settings, name)
    return Operator(settings, publisher, *actor_and_reason(actor, reason))


def _print(change: Change, *, dry_run: bool) -> None:
    for line in change.lines:
        print_line(f"would be: {line}" if dry_run else line)
