"""`txlake maintain`: ask the running job for maintenance, or do it where no job runs."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pipelines.cli.option_types import Seconds
from pipelines.cli.options import conf_option, output_option, refuse_if
from pipelines.cli.write_options import WriteOptions
from pipelines.output import print_json, print_rows
from txlake._counted import counted
from txlake.protocol import MAINTAIN

if TYPE_CHECKING:
    from pipelines.publish.retention import PublishedPositions

_KAFKA_S = 30.0  # how long Kafka is asked what is published
_COLUMNS = ("table", "files", "to merge", "into", "MB", "to delete", "old rows")


@click.command()
@click.option("--reason", default="", help="Why: it is stored with the record.")
@click.option("--actor", help="Who: the login user when it is not given.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what would be done.")
@click.option(
    "--wait-s",
    type=Seconds(),
    default=0.0,
    show_default=True,
    help="How long to wait until the job has taken it; the work itself comes after.",
)
@click.option("--offline", is_flag=True, help="Do it in this process; no job can run meanwhile.")
@conf_option
@output_option
def maintain(
    reason: str,
    actor: str | None,
    dry_run: bool,
    wait_s: float,
    offline: bool,
    conf: str,
    output: str,
) -> None:
    """Keep the tables in shape: ask the job, or do it here.

    Small files are merged, the tables' logs shortened, files deleted that nothing needs any more.
    """
    refuse_if(
        {
            "--reason, --actor and --wait-s go with a record: not with --offline": offline
            and bool(reason or actor or wait_s)
        }
    )
    writing = WriteOptions(conf, actor, reason, dry_run, wait_s, output)
    if dry_run:
        _estimate(writing)
    elif offline:
        _run(writing)
    else:
        writing.command(MAINTAIN, None)


def _estimate(writing: WriteOptions) -> None:
    """Prints the steps of a full round, table by table."""
    from storage.lake.integrity import require_recorded
    from storage.maintenance.maintenance import Maintenance

    progress = require_recorded(writing.lake)
    limits = writing.settings.maintenance_limits()
    maintenance = Maintenance(writing.lake, limits, published=_published_positions(writing))
    if progress.last is not None:
        maintenance.resume_from(progress.last)

    rows = []
    for table in maintenance.tables():
        files, work = maintenance.estimate(table)
        mb = round(work.bytes_before / 1e6, 2)
        rows.append(
            [
                table,
                files,
                work.files_merged,
                work.merges,
                mb,
                work.files_deleted,
                work.rows_expired,
            ]
        )

    if writing.output == "json":
        print_json([dict(zip(_COLUMNS, row, strict=True)) for row in rows])
        return

    rows_with_work = [row for row in rows if row[2] or row[5] or row[6]]
    if rows_with_work:
        print_rows(_COLUMNS, rows_with_work)
    click.echo(
        f"{counted(len(rows), 'table')}, {len(rows_with_work)} with something to do; "
        "nothing was changed"
    )


def _published_positions(writing: WriteOptions) -> PublishedPositions:
    """Returns what is published: the rest stays, all of it if Kafka does not answer."""
    from pipelines.publish.retention import PublishedPositions

    published = PublishedPositions(writing.settings)
    published.wait(_KAFKA_S)
    return published


def _run(writing: WriteOptions) -> None:
    """Takes every step of a full round, alone on the lake."""
    from pipelines.job.maintenance import summary
    from pipelines.job.refused_retention import RefusedRetention
    from storage.lake.integrity import require_intact
    from storage.lake.lake import Lake
    from storage.lake.lock import LakeLock
    from storage.lake.open_table import changing
    from storage.lake.progress import read_progress
    from storage.maintenance.limits import StepResult
    from storage.maintenance.maintenance import Maintenance

    location = writing.lake.location
    lock = LakeLock(location, f"{socket.gethostname()}:{os.getpid()}:txlake maintain")

    started_s = time.monotonic()
    result = StepResult()
    try:
        with changing(location):
            lake = Lake(location, is_driver=True)

            progress = read_progress(lake)
            require_intact(lake, progress, is_exclusive=True)
            limits = writing.settings.maintenance_limits()
            maintenance = Maintenance(lake, limits, published=_published_positions(writing))
            refused = RefusedRetention(lake, limits.topics.ms)
            if progress.last is not None:
                maintenance.resume_from(progress.last)
                refused.resume_from(progress.last)
            for table in maintenance.tables():
                result = sum(maintenance.steps(table, is_full=True), result)
            result = sum(refused.steps(is_full=True), result)
    finally:
        lock.release()
    seconds = time.monotonic() - started_s

    if writing.output == "json":
        print_json({**asdict(result), "seconds": round(seconds, 3)})
    else:
        click.echo(f"{summary(result)}, {seconds:.1f} s")
