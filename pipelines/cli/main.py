"""The command line: `txlake <command>`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

import click

from pipelines import logs
from pipelines.cli import setup, spark_submit
from pipelines.cli.backfill import backfill
from pipelines.cli.dead import dead
from pipelines.cli.maintain import maintain
from pipelines.cli.replay import replay
from pipelines.cli.schedule import schedule
from pipelines.cli.store import store
from pipelines.cli.topic import topic
from pipelines.cli.tx import tx
from pipelines.cli.verify import verify
from pipelines.errors import JobError, OperatorError
from pipelines.jvm.jars import JarError
from pipelines.jvm.java import JavaError
from pipelines.screen import printable
from pipelines.settings import Settings, SettingsError, load
from storage.errors import LakeError

# Each of these says in one sentence what is wrong and what to do.
KNOWN_ERRORS = (JobError, LakeError, SettingsError, JavaError, JarError, OperatorError)


class _OneSentence(click.Group):
    """Print known errors as one sentence and exit with 1; a bug keeps its traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KNOWN_ERRORS as error:
            lines = [printable(line) for line in str(error).split("\n")]
            raise click.ClickException("\n".join(lines)) from error


@click.group(cls=_OneSentence, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="txlake-pipelines", prog_name="txlake")
def main() -> None:
    """Transactional messages on a lakehouse."""


@main.command()
@click.option(
    "--conf", required=True, type=click.Path(dir_okay=False), help="Settings, as conf/local.toml."
)
@click.option(
    "--standby", is_flag=True,
    help="While another driver is active, wait ready to take over; Kafka elects.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print warnings only.")
def run(conf: str, standby: bool, quiet: bool) -> None:
    """Run the reconcile job until Ctrl-C or SIGTERM.

    It ends after the running epoch, and at the latest 10 s later: the next start finishes an epoch
    that takes longer.
    """
    settings = load(conf)
    logs.begin("warning" if quiet else settings.log.level, settings.log.format)
    run_job(settings, is_standby=standby)


# How long a stop waits for the running epoch.
STOP_S = 10.0


def run_job(settings: Settings, *, is_standby: bool = False) -> None:
    """Run the job; also what spark-submit runs."""
    from pipelines.job.driver import Driver

    log = logging.getLogger("txlake")
    driver = Driver(settings, is_standby=is_standby)

    def give_up() -> None:
        log.warning(
            "not stopped within %.0f s: what is running is given up, and nothing is lost; the next "
            "start finishes it", STOP_S,
        )  # fmt: skip
        logging.shutdown()
        os._exit(0)  # as kill -9, which an epoch must survive anyway

    patience = threading.Timer(STOP_S, give_up)
    patience.daemon = True

    def stop(*_: object) -> None:
        if not patience.is_alive():
            log.info("stopping after the running epoch")
            patience.start()
        driver.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    driver.run()
    log.info("stopped")


for command in (
    *setup.COMMANDS,
    store,
    spark_submit.spark_submit,
    spark_submit.environment,
    tx,
    dead,
    schedule,
    topic,
    maintain,
    verify,
    replay,
    backfill,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
