"""TCP ports that are reserved for a process of ours."""

from __future__ import annotations

import socket
from contextlib import ExitStack


class Reservation:
    """Ports that are held; port 0 means a free one.

    A held port is a bound socket that does not listen. With SO_REUSEADDR on both sides our process
    can listen on it; the system gives the port to no other process.

    Errors: OSError if a port is taken.
    """

    def __init__(self, host: str, *ports: int) -> None:
        self.ports: list[int] = []
        with ExitStack() as sockets:
            for port in ports:
                held = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((host, port))
                self.ports.append(held.getsockname()[1])
            self._sockets = sockets.pop_all()

    def release(self) -> None:
        """Frees the ports."""
        self._sockets.close()


def is_listening(host: str, port: int) -> bool:
    """Returns whether a process accepts connections on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
