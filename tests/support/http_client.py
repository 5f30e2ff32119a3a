"""A server asked over HTTP, and ports at which nobody listens."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass

from pipelines.local_server.ports import Reservation
from tests.support.wait import DEADLINE_S

_HELD: list[Reservation] = []  # until this process ends


@dataclass
class Answer:
    """What a server said."""

    status: int
    kind: str
    text: str


def get(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> Answer:
    """Ask a server."""
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310
            return Answer(answer.status, answer.headers["Content-Type"], answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers["Content-Type"], error.read().decode())


def free_port() -> int:
    """Return a port of loopback at which nobody listens.

    It is held until this process ends: a server of a test can listen on it, nobody else gets it.
    """
    held = Reservation("127.0.0.1", 0)
    _HELD.append(held)
    return held.ports[0]
