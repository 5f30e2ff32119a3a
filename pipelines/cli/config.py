"""`txlake config`: the settings in force, whether they can be used, and samples of them."""

from __future__ import annotations

import click

from pipelines.cli.options import conf_option, print_list, rows_option, settings_of
from pipelines.samples import SAMPLES
from pipelines.samples import sample as read_sample


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


@config.command()
@click.argument("name", type=click.Choice(list(SAMPLES)), default="local.toml")
@click.option("--list", "is_list", is_flag=True, help="Say which files there are, and what for.")
def sample(name: str, is_list: bool) -> None:
    """Print a file that comes with txlake: local.toml, settings with all defaults.

    `txlake config sample > job.toml` begins a job's own settings.
    """
    if is_list:
        width = max(map(len, SAMPLES))
        lines = [f"{file:{width}}  {purpose}" for file, purpose in SAMPLES.items()]
        click.echo("\n".join(lines))
    else:
        click.echo(read_sample(name), nl=False)
