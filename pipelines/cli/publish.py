"""`txlake publish`: committed messages to Kafka, too."""

from __future__ import annotations

import signal

import click

from pipelines.cli.options import refuse, settings_of


@click.group(invoke_without_command=True)
@click.option("--conf", type=click.Path(dir_okay=False), help="The job's settings.")
@click.option("--name", help="Which [publish.NAME]; without it the only one.")
@click.option("--quiet", is_flag=True, help="Print warnings only.")
@click.pass_context
def publish(context: click.Context, conf: str | None, name: str | None, quiet: bool) -> None:
    """Publish committed messages to Kafka until Ctrl-C or SIGTERM, each exactly once.

    Of several processes of one name Kafka elects the active one; the others stand by.
    """
    if context.invoked_subcommand is not None:
        refuse({
            "options stand behind the command: txlake publish status --conf FILE": bool(
                conf or name or quiet
            )
        })  # fmt: skip
        return
    if conf is None:
        raise click.UsageError("name the job's settings: --conf FILE")

    from pipelines import logs
    from pipelines.publish.run import PublisherProcess, publisher_of

    settings = settings_of(conf)
    logs.begin("warning" if quiet else settings.log.level, settings.log.format)
    process = PublisherProcess(settings, publisher_of(settings, name))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    process.run()
