"""Servers on loopback, to try things out: `txlake broker`, `txlake store`."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipelines.cli.option_types import NamedPath
from pipelines.jvm import ivy
from pipelines.jvm.jars import is_fetched, locked
from pipelines.jvm.java import java_binary
from pipelines.local_broker.broker import Broker
from pipelines.local_server.server import LocalServer
from pipelines.local_store.store import REGION, Keys, Store, id_path, secret_path

# Not AWS_...: keys of an account that the caller has are no business of this server.
ID_VARIABLE = "TXLAKE_STORE_ACCESS_KEY_ID"
SECRET_VARIABLE = "TXLAKE_STORE_SECRET_ACCESS_KEY"  # noqa: S105


def _port_option(default: int) -> Callable[..., Any]:
    """Returns the option for a server's port."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65_535),
        default=default,
        show_default=True,
        help="0: any free port.",
    )


@click.command()
@_port_option(9092)
@click.option(
    "--data-dir",
    type=NamedPath(file_okay=False, path_type=Path),
    default=Path(".cache/broker"),
    show_default=True,
    help="Where its data, settings and log are.",
)
def broker(port: int, data_dir: Path) -> None:
    """Run a Kafka broker on loopback until Ctrl-C or SIGTERM."""
    server = Broker(data_dir, port=port)

    def print_help() -> None:
        click.echo(f"Kafka answers at {server.bootstrap_servers}")
        click.echo(f"its data and log are in {server.data_folder}; stop it with Ctrl-C")

    _run_until_stopped(server, print_help)


@click.command()
@_port_option(9000)
@click.option(
    "--data-dir",
    type=NamedPath(file_okay=False, path_type=Path),
    default=Path(".cache/store"),
    show_default=True,
    help="Where its objects, keys, settings and log are.",
)
@click.option("--bucket", default="lakes", show_default=True, help="Created if it is missing.")
def store(port: int, data_dir: Path, bucket: str) -> None:
    """Run an S3 server on loopback until Ctrl-C or SIGTERM.

    To try a lake on a store. Its keys are made at random at the first start, and kept in the data
    folder; those in TXLAKE_STORE_ACCESS_KEY_ID and TXLAKE_STORE_SECRET_ACCESS_KEY win.
    """
    keys = _given_keys()
    _fetch_missing_jars()
    server = Store(data_dir, port=port, keys=keys)
    server.create_bucket(bucket)
    _run_until_stopped(server, lambda: click.echo(connection_help(server, bucket, keys)))


def _given_keys() -> Keys | None:
    identity = os.environ.get(ID_VARIABLE)
    secret = os.environ.get(SECRET_VARIABLE)

    if bool(identity) != bool(secret):
        raise click.ClickException(f"{ID_VARIABLE} and {SECRET_VARIABLE}: set both, or neither")

    return Keys(identity, secret) if identity and secret else None


def _fetch_missing_jars() -> None:
    if not is_fetched("store"):
        size_bytes = sum(jar.size_bytes for jar in locked("store"))
        click.echo(f"fetching the S3 server, {size_bytes / 1e6:.0f} MB")
        ivy.fetch(java_binary(), ["store"])


def connection_help(server: Store, bucket: str, keys: Keys | None) -> str:
    """Returns the server's address, and the settings of a lake on it. `keys`: the given ones."""
    if keys is None:
        folder = server.data_folder
        lines = [
            f"access_key_id_file = {json.dumps(str(id_path(folder)))}",
            f"secret_access_key_file = {json.dumps(str(secret_path(folder)))}",
        ]
    else:
        lines = [
            f'access_key_id_env = "{ID_VARIABLE}"',
            f'secret_access_key_env = "{SECRET_VARIABLE}"',
        ]

    return f"""S3 answers at {server.endpoint}, with the bucket {bucket}
its data and log are in {server.data_folder}; stop it with Ctrl-C

In the settings of the job:

[lake]
path = "s3://{bucket}/lake"

[lake.store]
endpoint = "{server.endpoint}"
allow_http = true
region = "{REGION}"
""" + "\n".join(lines)


def _run_until_stopped(server: LocalServer, on_start: Callable[[], None]) -> None:
    """Runs a server until Ctrl-C or SIGTERM.

    Input: `on_start` prints the help for the user, once the server answers.
    Errors: ServerError, JarError, JavaError.
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())

    with server:
        on_start()
        while not stopped.wait(0.5):
            if not server.is_running():
                raise server.ERROR(f"the {server.NAME} ended by itself: read {server.log_path}")

    click.echo("stopped; its data is kept")
