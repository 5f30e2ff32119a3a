"""`txlake consumer`, `txlake lag`: how far consumer groups are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.option_types import Duration
from pipelines.cli.options import (
    lake_options,
    limit_option,
    open_lake,
    options_as,
    print_list,
    rows_option,
)
from pipelines.cli.write_options import actor_and_reason
from txlake.protocol import SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from pipelines.explain.rows import Row
    from storage.lake.lake import Lake


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


class _Position(click.ParamType[str | datetime]):
    """Where to read on: `earliest`, `latest`, an offset or an instant."""

    name = "position"

    def convert(self, value: Any, param: Any, ctx: Any) -> str | datetime:
        """Returns the word or the number as text, or the instant."""
        from pipelines.operate.consumers import parse_position

        try:
            return parse_position(value)
        except ValueError as error:
            self.fail(str(error))


@consumer.command()
@click.argument("group")
@click.option("--topic", required=True, help="Of this topic.")
@click.option(
    "--to",
    required=True,
    type=_Position(),
    help="earliest, latest, an offset, or an instant: the first message delivered then or later.",
)
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, help="Only this queue.")
@click.option("--yes", is_flag=True, help="Write. Without it, only print what would be written.")
@click.option(
    "--session",
    type=Duration(),
    default=SESSION_TIMEOUT_MS,
    help="Session timeout of an owner that does not say its own, of an SDK before lake format 5.  "
    "[default: 30s, as the SDK's]",
)
@lake_options
@rows_option
def reset(
    group: str,
    topic: str,
    to: str | datetime,
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


@consumer.command()
@click.option("--group", help="Only this consumer group.")
@click.option("--topic", help="Only this topic.")
@lake_options
@limit_option
@rows_option
def retries(
    group: str | None,
    topic: str | None,
    lake_path: str | None,
    conf: str | None,
    limit: int,
    output: str,
) -> None:
    """List the messages that a listener has refused, and that come again."""
    from pipelines.health.consumer_retries import RETRY_COLUMNS, read_refused

    rows = read_refused(open_lake(lake_path, conf), "waiting", group, topic)
    print_list(RETRY_COLUMNS, rows[:limit], len(rows), output, "no message waits for a retry")


@consumer.group()
def dead() -> None:
    """Look at the messages that consumer groups have given up; resume or drop them."""


@dead.command("list")
@click.option("--group", help="Only this consumer group.")
@click.option("--topic", help="Only this topic.")
@click.option("--dropped", is_flag=True, help="Those that were dropped, with who did it and why.")
@lake_options
@limit_option
@rows_option
def list_dead(
    group: str | None,
    topic: str | None,
    dropped: bool,
    lake_path: str | None,
    conf: str | None,
    limit: int,
    output: str,
) -> None:
    """List the messages that listeners have refused too often, the longest dead first."""
    from pipelines.health.consumer_retries import (
        DEAD_COLUMNS,
        DROPPED_COLUMNS,
        read_dropped,
        read_refused,
    )

    lake = open_lake(lake_path, conf)
    if dropped:
        rows = read_dropped(lake, group, topic)
        print_list(DROPPED_COLUMNS, rows[:limit], len(rows), output, "no dropped messages")
        return

    rows = read_refused(lake, "dead", group, topic)
    print_list(DEAD_COLUMNS, rows[:limit], len(rows), output, "no dead messages of consumer groups")


@dataclass(frozen=True)
class _Chosen:
    """The dead messages that a command is about, and how it is written."""

    group: str
    topic: str | None
    queue_id: int | None
    offset: int | None
    yes: bool
    lake_path: str | None
    conf: str | None
    output: str

    @cached_property
    def lake(self) -> Lake:
        """Returns the lake of the options."""
        return open_lake(self.lake_path, self.conf)

    @cached_property
    def rows(self) -> list[Row]:
        """Returns the messages. Errors: OperatorError if there is none."""
        from pipelines.operate.consumer_retries import find_dead

        return find_dead(self.lake, self.group, self.topic, self.queue_id, self.offset)

    def print(self, verb: str, written: int | None) -> None:
        """Prints the messages, and how many were written; None: nothing is to be written."""
        from pipelines.health.consumer_retries import DEAD_COLUMNS

        count = len(self.rows)
        print_list(DEAD_COLUMNS, self.rows, count, self.output, "")
        would = f"{count} would be {verb}; --yes writes"
        click.echo(would if written is None else f"{written} {verb}", err=True)


# A command is about dead messages of one group.
_chosen_options = options_as(
    "chosen",
    _Chosen,
    click.argument("group"),
    click.option("--topic", help="Only of this topic."),
    click.option("--queue", "queue_id", type=click.IntRange(0), help="Only of this queue."),
    click.option("--offset", type=click.IntRange(0), help="Only the message at this offset."),
    click.option("--yes", is_flag=True, help="Write. Without it, only print what it would do."),
    lake_options,
    rows_option,
)


@dead.command()
@_chosen_options
def resume(chosen: _Chosen) -> None:
    """Let dead messages of consumer group GROUP come to its listener again.

    Each comes at once, and as often as a new message. The group can be active meanwhile.
    """
    from pipelines.operate.consumer_retries import write_resume

    chosen.print("resumed", write_resume(chosen.lake, chosen.rows) if chosen.yes else None)


@dead.command()
@_chosen_options
@click.option("--actor", help="Who: the login user when it is not given.")
@click.option("--reason", required=True, help="Why: it is stored with the message's row.")
def drop(chosen: _Chosen, actor: str | None, reason: str) -> None:
    """Drop dead messages of consumer group GROUP: they do not come again.

    `dead list --dropped` has them then, with who dropped them and why. The group can be active
    meanwhile.
    """
    from pipelines.operate.consumer_retries import write_drop

    actor, reason = actor_and_reason(actor, reason)
    written = write_drop(chosen.lake, chosen.rows, actor, reason) if chosen.yes else None
    chosen.print("dropped", written)


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
