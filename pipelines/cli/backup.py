"""`txlake backup`: a copy of a lake, taken while its job runs."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from pipelines.cli.options import (
    lake_options,
    location_from_options,
    output_option,
    settings_of,
)
from pipelines.output import print_json
from pipelines.output import size as readable_size
from pipelines.progress import progress_bar
from txlake._counted import counted


@click.command()
@click.argument("target")
@lake_options
@output_option
def backup(target: str, lake_path: str | None, conf: str | None, output: str) -> None:
    """Copy a lake to TARGET, as it is at its newest committed epoch.

    The job can run meanwhile. TARGET is a folder, or s3://... in the store of --conf; nothing is
    there yet, or an unfinished backup of the same lake, which goes on. The copy is a lake: `txlake
    verify --lake TARGET` checks it, and to restore it is to put it in the old one's place.
    """
    from storage.backup import back_up
    from storage.files.location import lake_location
    from storage.lake.lake import Lake

    lake = Lake(location_from_options(lake_path, conf))
    store = {} if conf is None else settings_of(conf).lake.store
    location = lake_location(target, store)
    began = time.monotonic()

    with progress_bar("backup", "bytes") as meter:
        result = back_up(lake, location, meter)

    if output == "json":
        print_json({**asdict(result), "target": location.path})
        return

    copied = (
        f"{counted(result.copied_files, 'file')} of {result.files} copied,"
        f" {readable_size(result.copied_bytes)}, in {time.monotonic() - began:.1f} s"
    )
    click.echo(
        f"{location.path}: lake {result.lake_id} at epoch {result.epoch};"
        f" {counted(result.tables, 'table')}; {copied}"
    )
