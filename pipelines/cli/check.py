"""`txlake check`: asking producer groups again."""

from __future__ import annotations

import click

from pipelines.cli.bulk import BulkOptions, bulk_options
from pipelines.cli.options import conf_option, settings_of
from pipelines.cli.write_options import WriteOptions, write_options
from pipelines.output import print_line
from txlake.protocol import GROUP_PATTERN, RESEND, check_topic, matches


@click.group()
def check() -> None:
    """Look at questions to producers; make check topics."""


@check.command()
@click.argument("target", required=False)
@bulk_options
@write_options
def resend(target: str | None, bulk: BulkOptions, writing: WriteOptions) -> None:
    """Let a pending half wait as if it were stored now.

    It loses the checks it had: its group is asked anew, once its immunity is over. TARGET is a
    transaction id, <queue>-<offset> or half:<queue>-<offset>. Without TARGET: all that is pending
    and fits the filters, the oldest first.
    """
    from pipelines.operate.bulk import pending_targets

    bulk.command(writing, RESEND, target, pending_targets)


@check.command()
@click.argument("group")
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="How many of the group's producers can answer at once.",
)
@conf_option
def topic(group: str, partitions: int, conf: str) -> None:
    """Make the check topic of a producer group whose client does not make it.

    The SDK makes its group's. Without the topic the group is never asked.
    """
    from pipelines.kafka_client.check_topics import make_check_topic

    if not matches(GROUP_PATTERN, group):
        raise click.UsageError(f"{group!r} is no producer group: {GROUP_PATTERN}")

    settings = settings_of(conf)
    name = check_topic(group, settings.kafka.check_topic_prefix)
    if make_check_topic(settings, group, partitions):
        print_line(f"made {name} with {partitions} partition{'s' * (partitions > 1)}")
    else:
        print_line(f"{name} is there: nothing was changed")
