"""`txlake tx commit` and `txlake tx rollback`: end a transaction by hand, by the same rules."""

from __future__ import annotations

import time

import click

from pipelines.cli_lake import OperatorError, output_option
from pipelines.cli_records import (
    check_result,
    settings_and_lake,
    who,
    write_options,
    write_or_tell,
)
from txlake.protocol import COMMIT, ROLLBACK


def _end(
    decision: str,
    half: str,
    reason: str,
    actor: str | None,
    dry_run: bool,
    wait_s: float,
    conf: str,
    output: str,
) -> None:
    from pipelines import operator_records
    from pipelines.explain.find import find
    from pipelines.explain.report import nothing_found
    from pipelines.explain.target import HALF, parse_target
    from pipelines.explain.units import units_of
    from pipelines.trial import try_operation

    name, why = who(actor, reason)
    try:
        target = parse_target(half)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if target.transaction_id is not None or target.source != HALF:
        raise click.UsageError(f"{half!r} is no half: name it as <queue>-<offset>")
    settings, lake = settings_and_lake(conf)
    found = find(lake, target)
    if not found.messages:
        raise OperatorError(nothing_found(found, target, lake.path))
    (unit,) = units_of(found)
    if unit.error is not None:
        raise OperatorError(
            f"{target} cannot be read ({unit.error}): no operation can end it, nothing was written"
        )
    (stored,) = [m for m in unit.messages if m["queue_offset"] == target.queue_offset]
    record = operator_records.operation(stored, decision, name, why)
    now_ms = time.time_ns() // 1_000_000
    result = write_or_tell(
        settings,
        record,
        cluster_id="" if found.newest is None else found.newest.cluster_id,
        expected=try_operation(lake, found, unit, record, now_ms),
        epoch=found.epoch,
        dry_run=dry_run,
        wait_for=lambda offset: operator_records.wait_for_end(lake, stored, offset, wait_s) or None,
        output=output,
    )
    check_result(result, wait_s, dry_run)


@click.command()
@click.argument("half")
@write_options
@output_option
def commit(half: str, **options: object) -> None:
    """Commit the transaction of HALF, a <queue>-<offset> of the half topic."""
    _end(COMMIT, half, **options)  # type: ignore[arg-type]


@click.command()
@click.argument("half")
@write_options
@output_option
def rollback(half: str, **options: object) -> None:
    """Roll back the transaction of HALF, a <queue>-<offset> of the half topic."""
    _end(ROLLBACK, half, **options)  # type: ignore[arg-type]
