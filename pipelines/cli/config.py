"""`txlake config`: the settings in force, and whether they can be used."""

from __future__ import annotations

import click

from pipelines.cli.options import conf_option, print_list, rows_option, settings_of


@click.group()
def config() -> None:
    """Look at the settings of a job."""


@config.command()
@conf_option
@click.option("--changed", is_flag=True, help="Only values that are not the default.")
@rows_option
def show(conf: str, changed: bool, output: str) -> None:
    """Show every setting with its value in force; secrets stay hidden."""
    from pipelines.settings import redacted_settings

    rows = [row for row in redacted_settings(conf) if not (changed and row["is_default"])]
    print_list(("section", "key", "value", "is_default"), rows, len(rows), output, "")


@config.command()
@conf_option
def validate(conf: str) -> None:
    """Check the settings as a start of the job does.

    Neither the lake nor Kafka is asked. Folders named for the checkpoint and for Spark's own files
    are made if they are not there.
    """
    from pipelines.job.startable import require_startable
    from pipelines.settings import warn_of_open_secrets

    settings = settings_of(conf)
    warn_of_open_secrets(conf)
    require_startable(settings)
    click.echo(
        f"{conf}: the settings can be used; whether the lake and Kafka let the job in shows when "
        "it starts"
    )
