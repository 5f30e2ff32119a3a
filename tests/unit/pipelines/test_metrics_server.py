"""The server of `/metrics` under clients that only connect, or send too slowly."""

from __future__ import annotations

import socket
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import RemoteDisconnected

import pytest
from prometheus_client import CollectorRegistry

from pipelines.metrics import server as metrics_server
from pipelines.metrics.server import MetricsServer
from tests.support.http_client import free_port, get
from tests.support.wait import wait_until


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    server = MetricsServer("127.0.0.1", port, CollectorRegistry(), lambda: "")
    yield port
    server.close()


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other side. Return whether it has closed the connection."""
    connection.settimeout(120)
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def is_healthy(port: int) -> bool:
    """Return whether the server answers; False if it closes the connection."""
    with suppress(RemoteDisconnected, ConnectionResetError, urllib.error.URLError):
        return get(port, "/healthz").status == 200
    return False


def test_half_open_requests_take_few_threads_of_the_job(port: int) -> None:
    before = threading.active_count()

    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 120))
            for _ in range(100)
        ]
        assert is_closed(sockets[-1])
        assert threading.active_count() - before <= 2 * metrics_server._REQUESTS_MAX

        for connection in sockets:
            connection.close()
    # The server sees that they are gone in threads of its own, each when it is its turn.
    wait_until(lambda: is_healthy(port), "an answer when the half-open requests are gone")


def test_a_request_that_trickles_in_ends(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_REQUEST_S", 0.5)

    with socket.create_connection(("127.0.0.1", port), 120) as connection:
        stopped = threading.Event()

        def trickle() -> None:
            with suppress(OSError):
                while not stopped.wait(0.05):
                    connection.sendall(b"G")

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            assert is_closed(connection)
        finally:
            stopped.set()
            sender.join()
