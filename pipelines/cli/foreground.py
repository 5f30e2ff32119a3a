"""A server of ours in the foreground, until it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import click

from pipelines.local_server.server import LocalServer


def run_until_stopped(server: LocalServer, tell: Callable[[], None]) -> None:
    """Runs a server until Ctrl-C or SIGTERM.

    Input: `tell` prints what a user needs, once the server answers.
    Errors: ServerError, JarError, JavaError.
    """
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    with server:
        tell()
        while not ended.wait(0.5):
            if not server.is_running():
                raise server.ERROR(f"the {server.NAME} ended by itself: read {server.log_path}")
    click.echo("stopped; its data is kept")
