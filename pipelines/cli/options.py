"""What the operator's commands share: options, and the lake that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from storage.files.place import LakePlace
    from storage.lake.lake import Lake

Command = Callable[..., Any]


def output_option(command: Command) -> Command:
    """Let a command print JSON."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
        help="For people or for programs.",
    )(command)  # fmt: skip


def lake_options(command: Command) -> Command:
    """Let a command name its lake, directly or by the job's settings."""
    command = click.option(
        "--conf", type=click.Path(dir_okay=False), help="The job's settings: they name the lake."
    )(command)
    return click.option("--lake", "lake_path", help="Where the lake is: a folder, or s3://...")(
        command
    )


def conf_option(command: Command) -> Command:
    """Let a command that writes name the job's settings: lake and Kafka."""
    return click.option(
        "--conf", required=True, type=click.Path(dir_okay=False), help="The job's settings."
    )(command)


def named_place(lake_path: str | None, conf: str | None) -> LakePlace:
    """Returns the place that the options name; with both `--conf` says how to reach its store.

    Errors: LakeError, SettingsError; click's usage error without an option.
    """
    from pipelines.settings import load
    from storage.files.place import lake_place

    if lake_path is None and conf is None:
        raise click.UsageError("name the lake: --lake PATH, or --conf FILE")
    if conf is None:
        return lake_place(str(lake_path))
    lake = load(conf).lake
    return lake_place(lake.path if lake_path is None else lake_path, lake.store)


def open_lake(lake_path: str | None, conf: str | None) -> Lake:
    """Returns the lake that the options name, whole. Errors: as `named_place`."""
    return whole_lake(named_place(lake_path, conf))


def whole_lake(place: LakePlace) -> Lake:
    """Returns a lake whose own tables hold what was committed.

    Errors: LakeError.
    """
    from storage.lake.lake import Lake
    from storage.lake.whole import require_readable

    lake = Lake(place)
    lake.lake_id()
    require_readable(lake)
    return lake
