"""`txlake maintain`: ask the running job for maintenance, or do it where no job runs."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import click

from pipelines.cli_lake import conf_option, output_option
from pipelines.cli_records import check_result, settings_and_lake, who, write_or_tell
from pipelines.screen import print_json, print_rows

if TYPE_CHECKING:
    from pipelines.settings import Settings
    from storage.lake import Lake
    from storage.maintenance import Work

_COLUMNS = ("table", "files", "to merge", "into", "MB", "to delete")
_EXPECTED = "accepted: the job does it step by step, between epochs"


@click.command()
@click.option("--reason", default="", help="Why: it is stored with the record.")
@click.option("--actor", help="Who: the login user when it is not given.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option(
    "--wait-s", type=click.FloatRange(0), default=0.0, show_default=True,
    help="How long to wait until the job has taken it; the work itself comes after.",
)  # fmt: skip
@click.option("--offline", is_flag=True, help="Do it here and now; no job may run.")
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
    """Merge small files, shorten the tables' logs, delete files that nothing needs any more."""
    settings, lake = settings_and_lake(conf)
    if dry_run:
        _foretell(settings, lake, output)
    elif offline:
        _run(settings, lake.path, output)
    else:
        _ask(settings, lake, *who(actor, reason), wait_s, output)


def _foretell(settings: Settings, lake: Lake, output: str) -> None:
    """Say what a full round would do, table by table."""
    from storage.maintenance import Maintenance
    from storage.whole import require_recorded

    require_recorded(lake)
    maintenance = Maintenance(lake, settings.maintenance_limits())
    rows = []
    for table in maintenance.tables():
        files, work = maintenance.foretell(table)
        mb = round(work.bytes_before / 1e6, 2)
        rows.append([table, files, work.files_merged, work.merges, mb, work.files_deleted])
    if output == "json":
        print_json([dict(zip(_COLUMNS, row, strict=True)) for row in rows])
        return
    worth = [row for row in rows if row[2] or row[5]]
    if worth:
        print_rows(_COLUMNS, worth)
    click.echo(f"{len(rows)} tables, {len(worth)} with something to do; nothing was changed")


def _run(settings: Settings, path: str, output: str) -> None:
    """Take every step of a full round, alone at the lake."""
    from pipelines.jvm_lock import held_without_jvm
    from pipelines.maintain import told
    from storage.epochs import read_progress
    from storage.lake import Lake
    from storage.lock import LakeLock
    from storage.maintenance import Maintenance, Work
    from storage.whole import require_whole

    lock = LakeLock(path, f"{socket.gethostname()}:{os.getpid()}:txlake maintain")
    began = time.monotonic()
    done = Work()
    try:
        with held_without_jvm(path):
            lake = Lake(path, is_maintained=True)
            require_whole(lake, read_progress(lake), is_alone=True)
            maintenance = Maintenance(lake, settings.maintenance_limits())
            for table in maintenance.tables():
                done = sum(maintenance.steps(table, is_full=True), done)
    finally:
        lock.release()
    _print_done(done, told(done), time.monotonic() - began, output)


def _print_done(done: Work, text: str, seconds: float, output: str) -> None:
    from dataclasses import asdict

    if output == "json":
        print_json({**asdict(done), "seconds": round(seconds, 3)})
    else:
        click.echo(f"{text}, {seconds:.1f} s")


def _ask(
    settings: Settings, lake: Lake, actor: str, reason: str, wait_s: float, output: str
) -> None:
    """Write the command."""
    from pipelines import operator_records
    from pipelines.explain.find import find_nothing
    from txlake.protocol import MAINTAIN

    found = find_nothing(lake)
    result = write_or_tell(
        settings,
        operator_records.command(MAINTAIN, None, actor, reason),
        cluster_id="" if found.newest is None else found.newest.cluster_id,
        expected=_EXPECTED,
        epoch=found.epoch,
        dry_run=False,
        wait_for=lambda offset: operator_records.wait_for_result(lake, offset, wait_s),
        output=output,
    )
    check_result(result, wait_s, dry_run=False)
