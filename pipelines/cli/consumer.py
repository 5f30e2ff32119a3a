"""`txlake consumer`, `txlake lag`: how far consumer groups are."""

from __future__ import annotations

import click

from pipelines.cli.lists import limit_option, print_list, rows_option
from pipelines.cli.options import lake_options, open_lake


@click.group()
def consumer() -> None:
    """Look at consumer groups."""


@consumer.command("list")
@lake_options
@limit_option
@rows_option
def list_consumers(lake_path: str | None, conf: str | None, limit: int, output: str) -> None:
    """List the consumer groups, what they read and how far behind they are."""
    from pipelines.health.consumers import COLUMNS, read_consumers

    rows = read_consumers(open_lake(lake_path, conf))
    print_list(COLUMNS, rows[:limit], len(rows), output, "no consumer group has read this lake")


@click.command()
@click.option("--group", help="Only this consumer group.")
@click.option("--topic", help="Only this topic.")
@lake_options
@limit_option
@rows_option
def lag(
    group: str | None,
    topic: str | None,
    lake_path: str | None,
    conf: str | None,
    limit: int,
    output: str,
) -> None:
    """Show how far behind each consumer group is, queue by queue, the most first.

    How far the job is behind Kafka: `txlake status`.
    """
    from pipelines.health.consumers import LAG_COLUMNS, read_lags

    rows = [
        row
        for row in read_lags(open_lake(lake_path, conf))
        if group in (None, row["consumer_group"]) and topic in (None, row["topic"])
    ]
    rows.sort(key=lambda row: -row["lag"])
    print_list(LAG_COLUMNS, rows[:limit], len(rows), output, "no consumer group has read it")
