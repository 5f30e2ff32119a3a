"""The console's server: where it listens, and that it ends with exit code 0."""

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
# So many connections are accepted before one of them can be closed again.
_BACKLOG: Final = 16


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches an address.

    Errors: OperatorError if there is no such address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OperatorError(f"--host {host}: there is no such address ({error})") from error
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Input: port 0 is any that is free.

    Errors: OperatorError if another process has the port, or it is not ours to have.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise OperatorError(
            f"the console cannot listen on {host} port {port} ({why}); name another: --port PORT"
        ) from error


def serve(site: ConsoleContext, listener: socket.socket, tell: Callable[[], None]) -> None:
    """Serves a console until Ctrl-C or SIGTERM. Input: `tell` is called once it listens."""
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
    # uvicorn ends by these signals, then raises them once more for whoever had them before.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: None)
    tell()
    uvicorn.Server(config).run(sockets=[listener])
