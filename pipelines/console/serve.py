"""The console's server: its socket, and its end with exit code 0."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from pipelines.console.app import console_app
from pipelines.console.connections import LimitedConnection
from pipelines.console.context import ConsoleContext
from pipelines.errors import OperatorError

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_END_S: Final = 3
# Connections that are accepted before one of them can be closed again.
_BACKLOG: Final = 16


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches an address.

    Errors: OperatorError if there is no such address.
    """
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OperatorError(f"--host {host}: there is no such address ({error})") from error
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in addresses)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Input: port 0 is any free one.

    Errors: OperatorError if another process has the port, or this user may not have it.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise OperatorError(
            f"the console cannot listen on {host} port {port} ({why}); name another: --port PORT"
        ) from error


def serve(site: ConsoleContext, listener: socket.socket, on_start: Callable[[], None]) -> None:
    """Serves a console until Ctrl-C or SIGTERM. Input: `on_start` is called once it listens."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = uvicorn.Config(
        console_app(site),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        proxy_headers=False,
        ws="none",
        http=LimitedConnection,
        timeout_graceful_shutdown=_END_S,
        backlog=_BACKLOG,
    )

    # uvicorn ends by these signals, then raises them again for the former handlers.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: None)

    on_start()
    uvicorn.Server(config).run(sockets=[listener])
