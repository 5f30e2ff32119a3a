"""`txlake consumer`, `txlake lag`: how far consumer groups are."""

from __future__ import annotations

import re
from typing import Any

import click

from pipelines.cli.option_types import Duration
from pipelines.cli.options import lake_options, limit_option, open_lake, print_list, rows_option

_SESSION_MS = 30_000


@click.group()
def consumer() -> None:
    """Look at consumer groups, and set where one reads on."""


@consumer.command("list")
@lake_options
@limit_option
@rows_option
def list_consumers(lake_path: str | None, conf: str | None, limit: int, output: str) -> None:
    """List the consumer groups: what they read, how far they are."""
    from pipelines.health.consumers import COLUMNS, read_consumers

    rows = read_consumers(open_lake(lake_path, conf))
    print_list(COLUMNS, rows[:limit], len(rows), output, "no consumer group has read this lake")


class _Position(click.ParamType[str]):
    """Where to read on: `earliest`, `latest` or an offset."""

    name = "position"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Returns the word or the number as text."""
        if value not in ("earliest", "latest") and not re.fullmatch("[0-9]{1,18}", value):
            self.fail(f"{value!r}: earliest, latest or an offset")
        return str(value)


@consumer.command()
@click.argument("group")
@click.option("--topic", required=True, help="Of this topic.")
@click.option("--to", required=True, type=_Position(), help="earliest, latest, or an offset.")
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, help="Only this queue.")
@click.option("--yes", is_flag=True, help="Write. Without it, only print what would be written.")
@click.option(
    "--session",
    type=Duration(),
    default=_SESSION_MS,
    help="Session timeout of an owner that does not say its own, of an SDK before lake format 5.  "
    "[default: 30s, as the SDK's]",
)
@lake_options
@rows_option
def reset(
    group: str,
    topic: str,
    to: str,
    queues: tuple[int, ...],
    yes: bool,
    session: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """Set where consumer group GROUP reads on.

    It is refused while a consumer of the group is active.
    """
    from pipelines.operate.consumers import COLUMNS, plan_reset, write_reset

    lake = open_lake(lake_path, conf)
    rows = plan_reset(lake, group, topic, to, queues)
    if yes:
        write_reset(lake, rows, session)

    print_list(COLUMNS, rows, len(rows), output, "")
    count = len(rows)
    click.echo(f"{count} written" if yes else f"{count} would be written; --yes writes", err=True)


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
    """Show how far behind each consumer group is.

    Queue by queue, the most first. How far the job is behind Kafka: `txlake status`.
    """
    from pipelines.health.consumers import LAG_COLUMNS, find_lags

    rows = find_lags(open_lake(lake_path, conf), group, topic)
    print_list(LAG_COLUMNS, rows[:limit], len(rows), output, "no consumer group has read it")
