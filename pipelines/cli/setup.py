"""Commands for the set-up: `txlake jars`, `txlake broker`, `txlake doctor`."""

from __future__ import annotations

import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.jvm import ivy
from pipelines.jvm import jars as jar_lock
from pipelines.jvm.java import JavaError, java_binary, java_home
from pipelines.local_broker.broker import Broker, BrokerError

PACKAGES = ("txlake", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow", "duckdb")


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Print an error that says what to do, without its traceback."""
    try:
        yield
    except (BrokerError, JavaError, jar_lock.JarError) as error:
        raise click.ClickException(str(error)) from None


@click.group()
def jars() -> None:
    """Fetch and check the JVM jars."""


@jars.command()
def fetch() -> None:
    """Fetch the jars that the cache lacks."""
    with _one_sentence():
        count = ivy.fetch(java_binary())
    click.echo(f"{count} jars fetched into {jar_lock.cache_folder()}")


@jars.command()
def verify() -> None:
    """Read every jar and compare its SHA-256."""
    with _one_sentence():
        count = jar_lock.verify()
    click.echo(f"{count} jars are whole")


@jars.command()
def lock() -> None:
    """Resolve the jars anew and write the lock (from a clone only)."""
    with _one_sentence():
        resolved = ivy.lock(java_binary())
    for name, found in resolved.items():
        click.echo(f"{name}: {len(found)} jars")


@click.command()
@click.option("--port", default=9092, show_default=True, help="0: any free port.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cache/broker"),
    show_default=True,
    help="Where its data, settings and log are.",
)
def broker(port: int, data_dir: Path) -> None:
    """Run a Kafka broker on loopback until Ctrl-C or SIGTERM."""
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    with _one_sentence(), Broker(data_dir, port=port) as running:
        click.echo(f"Kafka answers at {running.bootstrap_servers}")
        click.echo(f"its data and log are in {running.data_folder}; stop it with Ctrl-C")
        while not ended.wait(0.5):
            if not running.is_running():
                raise BrokerError(f"the broker ended by itself: read {running.log_path}")
    click.echo("stopped; its data is kept")


@click.command()
def doctor() -> None:
    """Look whether everything that txlake needs is there, and say what to do if not."""
    table = Table("", "what", "found", "what to do")
    sound = True
    for finding in findings():
        sound = sound and finding.is_sound
        mark = "[green]ok[/]" if finding.is_sound else "[red]not[/]"
        table.add_row(mark, finding.what, escape(finding.found), escape(finding.to_do))
    Console().print(table)
    if not sound:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    is_sound: bool
    what: str
    found: str
    to_do: str = ""


def findings() -> Iterator[Finding]:
    """Yields a line about everything that the set-up makes."""
    found = platform.python_version()
    yield Finding(True, "Python", f"{found} in {sys.prefix}")
    for name in PACKAGES:
        try:
            yield Finding(True, name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(False, name, "missing", "run `make setup`")
    try:
        yield Finding(True, "Java", str(java_home()))
    except JavaError as error:
        yield Finding(False, "Java", "missing", str(error))
    for jar_set, paths in (("spark", jar_lock.spark_jars), ("broker", jar_lock.broker_jars)):
        what = f"jars: {jar_set}"
        try:
            yield Finding(True, what, f"{len(paths())} in {jar_lock.cache_folder()}")
        except jar_lock.JarError as error:
            yield Finding(False, what, "missing or broken", str(error))


COMMANDS: list[click.Command] = [jars, broker, doctor]


@click.group(commands=COMMANDS)
def main() -> None:
    """Set up txlake."""


if __name__ == "__main__":
    main()
