"""`txlake dead`: discarded halves and undeliverable messages."""

from __future__ import annotations

import click

from pipelines.cli.bulk import BulkOptions, bulk_options
from pipelines.cli.options import empty_text, list_options, open_lake, print_list
from pipelines.cli.write_options import WriteOptions, write_options
from txlake.protocol import RESUME


@click.group()
def dead() -> None:
    """Look at what is given up or undeliverable, and resume it."""


@dead.command("list")
@list_options
def list_dead(
    topic: str | None,
    group: str | None,
    limit: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """List what was given up or cannot be delivered.

    What was ended or delivered since is not there any more.
    """
    from pipelines.health.dead_letters import COLUMNS, read_dead

    rows = read_dead(open_lake(lake_path, conf), topic, group)
    print_list(
        COLUMNS,
        rows[:limit],
        len(rows),
        output,
        empty_text("no dead messages", group=group, topic=topic),
    )


@dead.command()
@click.argument("target", required=False)
@bulk_options
@write_options
def resume(target: str | None, bulk: BulkOptions, writing: WriteOptions) -> None:
    """Make a discarded half pending again, or deliver a message.

    TARGET is a transaction id, a half, <queue>-<offset> or half:<queue>-<offset>, or a message that
    could not be delivered, undeliverable:<offset>. Without TARGET: all that is dead and fits the
    filters, the longest dead first.
    """
    from pipelines.operate.bulk import dead_targets

    bulk.command(writing, RESUME, target, dead_targets)
