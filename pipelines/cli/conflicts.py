"""`txlake conflicts`: operations without effect."""

from __future__ import annotations

import click

from pipelines.cli.option_types import Duration
from pipelines.cli.options import (
    empty_text,
    lake_options,
    limit_option,
    open_lake,
    print_list,
    rows_option,
)
from pipelines.output import now_ms

_DAY_MS = 86_400_000


@click.group()
def conflicts() -> None:
    """Look at operations without effect."""


@conflicts.command("list")
@click.option("--group", help="Only operations of this producer group.")
@click.option("--reason", help="Only this reason: duplicate_end, wrong_producer_group ...")
@click.option(
    "--since", type=Duration(), default=_DAY_MS, help="How far back: 2h, 7d.  [default: 1d]"
)
@lake_options
@limit_option
@rows_option
def list_conflicts(
    group: str | None,
    reason: str | None,
    since: int,
    lake_path: str | None,
    conf: str | None,
    limit: int,
    output: str,
) -> None:
    """List operations without effect, the newest last.

    Which they are, why, and about which half.
    """
    from pipelines.health.conflicts import COLUMNS, read_conflicts, require_reason

    require_reason(reason)
    since_at = max(0, now_ms() - since)
    newest = read_conflicts(open_lake(lake_path, conf), since_at, group, reason, limit)
    none = empty_text("no operations without effect", group=group, reason=reason)
    print_list(COLUMNS, newest.rows, newest.counts.total(), output, none)
