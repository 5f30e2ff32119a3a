"""`txlake groups`: producer groups, and whether they answer."""

from __future__ import annotations

import click

from pipelines.cli.options import (
    lake_options,
    limit_option,
    open_lake,
    print_list,
    rows_option,
    settings_of,
)
from pipelines.output import now_ms


@click.command()
@lake_options
@limit_option
@rows_option
def groups(lake_path: str | None, conf: str | None, limit: int, output: str) -> None:
    """List the producer groups, and whether they answer.

    Those that have something pending, or were asked in the last day. With --conf Kafka says how
    many members of each listen for checks.
    """
    from pipelines.health.groups import COLUMNS, read_groups
    from pipelines.health.transactions import state_of

    lake = open_lake(lake_path, conf)
    rows = read_groups(lake, state_of(lake), now_ms())
    if conf is not None:
        from pipelines.health.kafka import members_of

        members = members_of(settings_of(conf).kafka, [row["producer_group"] for row in rows])
        rows = [{**row, "members": members.get(row["producer_group"])} for row in rows]
    print_list(
        COLUMNS,
        rows[:limit],
        len(rows),
        output,
        "no producer group has pending halves or was asked in the last day",
    )
