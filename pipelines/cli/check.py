"""`txlake check`: asking producer groups again."""

from __future__ import annotations

import click

from pipelines.cli.bulk import Bulk, bulk_options
from pipelines.cli.writing import Writing, writes
from txlake.protocol import RESEND


@click.group()
def check() -> None:
    """Ask producer groups again what became of their transactions."""


@check.command()
@click.argument("target", required=False)
@bulk_options
@writes
def resend(target: str | None, bulk: Bulk, writing: Writing) -> None:
    """Let a pending half wait as if it were stored now.

    It loses the checks it had: its group is asked anew, once its immunity is over. TARGET is a
    transaction id, <queue>-<offset> or half:<queue>-<offset>. Without TARGET: all that is pending
    and fits the filters, the oldest first.
    """
    from pipelines.operate.bulk import pending_targets

    bulk.command(writing, RESEND, target, pending_targets)
