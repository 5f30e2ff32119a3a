"""Commands for the set-up: `txlake jars`, `txlake doctor`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.cli.options import conf_of, settings_of
from pipelines.errors import JobError
from pipelines.jvm import ivy
from pipelines.jvm import jars as jar_lock
from pipelines.jvm.clone import packages_remedy
from pipelines.jvm.java import JavaError, java_binary, java_home
from txlake._counted import counted

PACKAGES = ("txlake", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow", "duckdb")


@click.group()
def jars() -> None:
    """Fetch and check the JVM jars."""


@jars.command()
@click.argument("sets", nargs=-1, type=click.Choice((*jar_lock.JAR_SETS, *jar_lock.OPTIONAL_SETS)))
def fetch(sets: tuple[str, ...]) -> None:
    """Fetch the jars that the cache lacks.

    SETS: those of the set-up by default. Besides them there are `store`, a local S3 server, and
    `s3`, with which Spark reads S3.
    """
    count = ivy.fetch(java_binary(), sets or jar_lock.JAR_SETS)
    click.echo(f"{counted(count, 'jar')} fetched into {jar_lock.cache_folder()}")


@jars.command()
def verify() -> None:
    """Read every jar and compare its SHA-256.

    Sets that were never fetched are left out, but `spark`, which a job needs.
    """
    count = jar_lock.verify()
    click.echo(f"{counted(count, 'jar')} verified")


@jars.command()
@click.argument(
    "sets",
    nargs=-1,
    required=True,
    type=click.Choice((*jar_lock.JAR_SETS, *jar_lock.OPTIONAL_SETS)),
)
def path(sets: tuple[str, ...]) -> None:
    """Print the class path of SETS.

    `spark` is what a Spark session of your own needs to read a lake; with `s3`, one on S3.
    """
    click.echo(jar_lock.class_path(sets))


@jars.command()
def lock() -> None:
    """Resolve the jars anew and write the lock (from a clone only)."""
    for name, locked_jars in ivy.lock(java_binary()).items():
        click.echo(f"{name}: {counted(len(locked_jars), 'jar')}")


@click.command()
@conf_of("The job's settings: whose drivers to name.")
def doctor(conf: str | None) -> None:
    """Look whether all that txlake needs is there.

    If not, it says what to do. With --conf it says, too, which driver of the lake is active and
    which stand by.
    """
    all_findings = list(findings())
    if conf is not None:
        all_findings += driver_findings(conf)

    table = Table("", "what", "found", "what to do")
    for finding in all_findings:
        mark = "[green]ok[/]" if finding.is_sound else "[red]not[/]"
        table.add_row(mark, finding.part, escape(finding.state), escape(finding.to_do))

    Console().print(table)
    if not all(finding.is_sound for finding in all_findings):
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    is_sound: bool
    part: str
    state: str
    to_do: str = ""


def findings() -> Iterator[Finding]:
    """Yields a line for each part of the set-up."""
    version = platform.python_version()
    yield Finding(True, "Python", f"{version} in {sys.prefix}")

    for name in PACKAGES:
        try:
            yield Finding(True, name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(False, name, "missing", packages_remedy())

    try:
        yield Finding(True, "Java", str(java_home()))
    except JavaError as error:
        yield Finding(False, "Java", "missing", str(error))

    for jar_set in jar_lock.sets_in_use():
        part = f"jars: {jar_set}"
        try:
            count = len(jar_lock.jar_paths(jar_set))
            yield Finding(True, part, f"{count} in {jar_lock.cache_folder()}")
        except jar_lock.JarError as error:
            yield Finding(False, part, "missing or broken", str(error))


def driver_findings(conf: str) -> Iterator[Finding]:
    """Yields a line for each driver of the settings' lake. Errors: SettingsError."""
    from pipelines.job.election import DriverGroup

    settings = settings_of(conf)
    part = "driver"
    try:
        drivers = DriverGroup(settings.kafka, settings.lake.location().path).describe()
    except JobError as error:
        yield Finding(False, part, "not known", str(error))
        return

    if drivers.active is None:
        yield Finding(True, part, "none is active", "start one: `txlake run`")
    else:
        yield Finding(True, part, f"{drivers.active} is active")

    for owner in drivers.others:
        yield Finding(True, part, f"{owner} stands by")
