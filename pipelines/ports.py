"""Reserve TCP ports for a process that we start."""

from __future__ import annotations

import socket


class Reservation:
    """Hold ports so that nobody is given them; port 0 asks for a free one.

    A held port is a bound socket that does not listen. With SO_REUSEADDR on both sides it is in
    nobody's way: the process it is for can listen there, and the system gives it to nobody else.

    Errors: OSError when a port is taken.
    """

    def __init__(self, host: str, *ports: int) -> None:
        self._sockets: list[socket.socket] = []
        for port in ports:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._sockets.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((host, port))
            except OSError:
                self.release()
                raise
        self.ports: list[int] = [held.getsockname()[1] for held in self._sockets]

    def release(self) -> None:
        """Give the ports back."""
        while self._sockets:
            self._sockets.pop().close()


def listens(host: str, port: int) -> bool:
    """Tell whether someone accepts connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
