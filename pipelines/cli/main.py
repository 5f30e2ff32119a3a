"""The command line: `txlake <command>`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click
from click.exceptions import NoSuchCommand

from pipelines.cli.import_blocker import block_pandas
from pipelines.cli.options import conf_option
from pipelines.cli.stop_limit import StopLimit
from pipelines.output import printable

if TYPE_CHECKING:
    from pipelines.settings import Settings

# The sections of help, by a user's aim, and the module of each command in this room: it is imported
# when the command is typed. The imports of some, Spark's Python among them, take longer than others
# run.
_SECTIONS: Final = {
    "See": {
        "status": "status",
        "top": "status",
        "tx": "tx",
        "topic": "topic",
        "sql": "sql",
        "groups": "groups",
        "conflicts": "conflicts",
        "consumer": "consumer",
        "lag": "consumer",
        "console": "console",
        "verify": "verify",
    },
    "Fix": {
        "dead": "dead",
        "check": "check",
        "schedule": "schedule",
        "losses": "losses",
        "maintain": "maintain",
        "backup": "backup",
        "replay": "replay",
        "backfill": "backfill",
    },
    "Run": {
        "run": "",
        "spark-submit": "spark_submit",
        "environment": "spark_submit",
        "publish": "publish",
        "broker": "servers",
        "store": "servers",
    },
    "Set up": {"doctor": "setup", "jars": "setup", "config": "config", "acl": "acl"},
}
_CTRL_C: Final = 130
_MODULE_BY_COMMAND: Final = {
    name: module for section in _SECTIONS.values() for name, module in section.items() if module
}


def known_errors() -> tuple[type[Exception], ...]:
    """Returns the errors whose text is one sentence: what is wrong and what to do."""
    from pipelines.errors import JobError, OperatorError
    from pipelines.jvm.jars import JarError
    from pipelines.jvm.java import JavaError
    from pipelines.local_server.server import ServerError
    from pipelines.settings import SettingsError
    from storage.errors import LakeError
    from txlake.errors import LakeError as ClientLakeError

    return (
        JobError,
        LakeError,
        SettingsError,
        JavaError,
        JarError,
        ServerError,
        OperatorError,
        ClientLakeError,
    )


def _disk_error(error: Exception) -> Exception:
    """Returns one sentence for an error of a disk; any other error unchanged: it is a bug."""
    from txlake._disk import disk_refusal

    refusal = disk_refusal(error) if isinstance(error, OSError) else None
    if refusal is None:
        return error

    place = getattr(error, "filename", None)
    disk = "the disk" if place is None else f"the disk of {printable(str(place))}"
    return click.ClickException(f"{disk} {refusal}")


@contextmanager
def _counting_interrupts() -> Iterator[list[int]]:
    """Notes each Ctrl-C of a block, which ends it by KeyboardInterrupt.

    A library can turn that into an error of its own, as DuckDB does. A command that handles Ctrl-C
    itself is not disturbed.
    """
    interrupts: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupts
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _require_text(arguments: Sequence[str]) -> None:
    """Checks that all arguments are text. Errors: click's usage error."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise click.UsageError(
                f"the argument {printable(argument)} is not text in UTF-8"
            ) from None


class _Commands(click.Group):
    """Commands of other modules, imported when they are needed.

    Prints known errors as one sentence and exits with 1; a bug keeps its traceback. Ctrl-C exits
    with 130, as a shell does for a program that it ends.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return sorted({*super().list_commands(ctx), *_MODULE_BY_COMMAND})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands under the heading of their section."""
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for heading, names in _SECTIONS.items():
            commands = [self.get_command(ctx, name) for name in names]
            rows = [
                (str(command.name), command.get_short_help_str(width))
                for command in commands
                if command
            ]

            with formatter.section(heading):
                formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments of all commands. Errors: click's usage error; of a full disk."""
        _require_text(args)
        try:
            return super().parse_args(ctx, args)
        except OSError as error:  # what --version and --help print
            raise _disk_error(error) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the typed command. Errors: click's usage error, with near names."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(
                error.command_name, possibilities=self._all_names(ctx), ctx=ctx
            ) from None

    def _all_names(self, ctx: click.Context) -> Iterator[str]:
        """Yields the names of all commands, those of groups in full: `tx explain`."""
        for name in self.list_commands(ctx):
            yield name

            command = self.get_command(ctx, name)
            if isinstance(command, click.Group):
                yield from (f"{name} {inner}" for inner in command.list_commands(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command by its name, and imports its module."""
        if cmd_name not in self.commands and cmd_name in _MODULE_BY_COMMAND:
            module = import_module(f"pipelines.cli.{_MODULE_BY_COMMAND[cmd_name]}")
            commands = [item for item in vars(module).values() if isinstance(item, click.Command)]
            self.add_command(next(item for item in commands if item.name == cmd_name))

        return super().get_command(ctx, cmd_name)

    def invoke(self, context: click.Context) -> Any:
        with _counting_interrupts() as interrupts:
            return self._invoke(context, interrupts)

    def _invoke(self, context: click.Context, interrupts: list[int]) -> Any:
        try:
            return super().invoke(context)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except UnicodeEncodeError as error:
            raise click.ClickException(
                f"the output is {error.encoding}, which lacks a character that is to be printed: "
                "set PYTHONIOENCODING=utf-8"
            ) from error
        except (Exception, KeyboardInterrupt) as error:
            if interrupts or isinstance(error, KeyboardInterrupt):
                click.echo("\nstopped by Ctrl-C", err=True)
                raise click.exceptions.Exit(_CTRL_C) from None

            if not isinstance(error, known_errors()):
                raise _disk_error(error) from error

            lines = [printable(line) for line in str(error).split("\n")]
            raise click.ClickException("\n".join(lines)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="txlake-pipelines", prog_name="txlake")
def main() -> None:
    """Transactional messages on a lakehouse.

    The variables TXLAKE_CONF and TXLAKE_LAKE stand for --conf and --lake of every command. An
    option goes before both, TXLAKE_CONF before TXLAKE_LAKE.
    """


@main.command()
@conf_option
@click.option(
    "--standby",
    is_flag=True,
    help="While another driver is active, wait ready to take over; Kafka elects.",
)
@click.option("--quiet", is_flag=True, help="Print warnings only.")
def run(conf: str, standby: bool, quiet: bool) -> None:
    """Run the reconcile job until Ctrl-C or SIGTERM.

    It ends after the running epoch, and at the latest 10 s later: the next start finishes an epoch
    that takes longer.
    """
    from pipelines.jvm.arrow_memory import keep_freed_pages

    keep_freed_pages()
    from pipelines import logs
    from pipelines.settings import load, warn_of_open_secrets

    settings = load(conf)
    logs.begin("warning" if quiet else settings.log.level, settings.log.format)
    warn_of_open_secrets(conf)
    run_job(settings, is_standby=standby)


def run_job(settings: Settings, *, is_standby: bool = False) -> None:
    """Runs the job; spark-submit runs this, too."""
    from py4j.protocol import Py4JError

    from pipelines.errors import JobError
    from pipelines.job.driver import Driver

    log = logging.getLogger("txlake")

    limit = StopLimit(
        "what is running is given up, and nothing is lost; the next start finishes it"
    )

    def stop(*_: object) -> None:
        if limit.begin():
            log.info("stopping after the running epoch")
        driver.stop()

    driver = Driver(settings, is_standby=is_standby, on_jvm_signal=stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    try:
        _run_in_thread(driver.run)
    except (JobError, Py4JError, OSError) as error:
        if not driver.is_stopping or driver.epochs is not None:
            raise
        # The signal has ended the JVM, too, before it could wait for the driver.
        log.warning("stopped while it was starting (%s)", str(error).split("\n")[0])
    finally:
        limit.end()

    log.info("stopped")
    driver.finish()


def _run_in_thread(run: Callable[[], None]) -> None:
    """Runs a function in a thread of its own, and raises its error.

    Spark, started in the main thread, would replace our handler of Ctrl-C by its own.
    """
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="txlake-driver")
    thread.start()
    thread.join()

    if errors:
        raise errors[0]


def start() -> None:
    """Runs the command of this process, for `txlake` and `python -m pipelines`."""
    block_pandas(sys.argv[1:])
    main(prog_name="txlake")


if __name__ == "__main__":
    start()
