"""`txlake losses`: records that Kafka deleted before the job landed them."""

from __future__ import annotations

from typing import Any

import click

from pipelines.cli.options import (
    conf_option,
    open_intact_lake,
    print_list,
    rows_option,
    settings_of,
)
from pipelines.cli.write_options import WriteOptions, write_options
from pipelines.errors import OperatorError
from txlake.protocol import ACCEPT_LOSS, LostTarget

_COLUMNS = ("target", "kind", "partition", "first", "last", "offsets")
_NONE = "Kafka has all that comes next: nothing is lost"


@click.group()
def losses() -> None:
    """Look at what Kafka deleted too early, and go on without it."""


@losses.command("list")
@conf_option
@rows_option
def list_losses(conf: str, output: str) -> None:
    """List the offsets that come next and that Kafka has no longer."""
    from pipelines.operate.losses import losses as losses_of

    settings = settings_of(conf)
    rows = [_row(loss) for loss in losses_of(settings, open_intact_lake(settings.lake.location()))]
    print_list(_COLUMNS, rows, len(rows), output, _NONE)


@losses.command()
@write_options
def accept(writing: WriteOptions) -> None:
    """Accept all that `losses list` shows.

    The next start of the job goes on behind it.
    """
    from pipelines.operate.losses import losses as losses_of

    lost = losses_of(writing.settings, writing.lake)
    if not lost:
        raise OperatorError(f"{_NONE}; nothing was written")

    writing.commands((ACCEPT_LOSS, str(loss)) for loss in lost)


def _row(loss: LostTarget) -> dict[str, Any]:
    return {
        "target": str(loss),
        "kind": loss.kind,
        "partition": loss.partition,
        "first": loss.first,
        "last": loss.last,
        "offsets": loss.last - loss.first + 1,
    }
