"""The process of `tests.support.fault_proxy`: what passes requests on, and makes some fail.

Each connection of a client has a thread and one connection to the server. The process ends when its
pipe ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any
from xml.sax.saxutils import escape

from pipelines.local_server.server import HOST
from tests.support.active_faults import ActiveFaults
from tests.support.faults import (
    CutBefore,
    CutWithin,
    LostAnswer,
    Request,
    Status,
    Throttle,
    Unconditional,
    What,
)
from tests.support.http_wire import Connection, Head
from tests.support.traffic import Traffic

_TRIES = 5  # of a request that changes nothing


class _CutError(Exception):
    """The connection to the client ends here."""


class Server:
    """What listens and passes on. `come_back` starts it, `go_away` ends it."""

    def __init__(self, port: int, server_port: int) -> None:
        self.faults = ActiveFaults()
        self._port = port
        self._server_port = server_port
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._open: dict[socket.socket, threading.Thread] = {}

    def traffic(self) -> Traffic:
        """Returns what has passed until now."""
        with self._lock:
            return self._traffic.copy()

    def go_away(self) -> None:
        """Refuses connections from now on, and cuts those that are open."""
        listener, acceptor = self._listener, self._acceptor
        assert listener is not None and acceptor is not None, "it is away"
        self._listener = self._acceptor = None

        _cut(listener)
        acceptor.join()
        listener.close()

        with self._lock:
            threads = list(self._open.values())
            for client in self._open:
                _cut(client)

        for thread in threads:
            thread.join()

    def come_back(self) -> None:
        """Accepts connections, at the same port as before."""
        assert self._listener is None, "it is not away"
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HOST, self._port))
        self._listener.listen(128)
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,))
        self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # it goes away
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                self._open[client] = thread
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        connection, server = Connection(client), Connection(None)
        try:
            with contextlib.suppress(_CutError, OSError):
                while (head := connection.read_head()) is not None:
                    server = self._exchange(connection, head, server)
        finally:
            server.close()
            with self._lock:
                del self._open[client]
            _cut(client)
            connection.close()

    def _exchange(self, client: Connection, head: Head, server: Connection) -> Connection:
        """Passes one request on. Output: the connection to the server, for the next one."""
        if (head.get("expect") or "").lower() == "100-continue":
            client.send(b"HTTP/1.1 100 Continue\r\n\r\n")

        body = b"".join(client.body(head))
        method, target, _ = head.start.split(" ")
        request = Request(method, target)

        with self._lock:
            self._traffic.requests[request.method, request.kind] += 1
            self._traffic.sent_bytes[request.kind] += len(body)

        waits, what = self.faults.of(request)
        for wait in waits:
            wait.wait()

        if isinstance(what, Throttle):
            what = what.status

        if isinstance(what, CutBefore):
            raise _CutError

        if isinstance(what, Status):
            client.send(_refusal(request, what))
            self._answered(what.status)
            return server

        if isinstance(what, Unconditional):
            head = head.without("if-none-match")

        server, answer = self._asked(server, head.without("expect").raw() + body, method)

        try:
            self._pass_back(client, server, answer, request, what)
        except BaseException:
            server.close()
            raise
        return server

    def _asked(self, server: Connection, request: bytes, method: str) -> tuple[Connection, Head]:
        """Sends a request on; again on a new connection where the server has closed the old one."""
        tries = _TRIES if method in ("GET", "HEAD") else 1
        for _ in range(tries):
            if not server.is_usable():
                server.close()
                server = Connection(socket.create_connection((HOST, self._server_port)))

            with contextlib.suppress(OSError):
                server.send(request)
                answer = server.read_answer()
                if answer is not None:
                    return server, answer
            server.close()
            server = Connection(None)
        raise _CutError

    def _pass_back(
        self,
        client: Connection,
        server: Connection,
        answer: Head,
        request: Request,
        what: What | None,
    ) -> None:
        pieces = server.body(answer, is_answer=True, method=request.method)

        if isinstance(what, LostAnswer):
            for _ in pieces:  # the server has done all of it
                pass
            raise _CutError

        if isinstance(what, CutWithin):
            body = b"".join(pieces)
            client.send(answer.raw() + body[: len(body) // 2])
            raise _CutError

        self._answered(answer.status)
        client.send(answer.raw())

        for piece in pieces:
            with self._lock:
                self._traffic.received_bytes[request.kind] += len(piece)
            client.send(piece)

        if answer.ends_connection:
            raise _CutError

    def _answered(self, status: int) -> None:
        with self._lock:
            self._traffic.answers[status] += 1


def _refusal(request: Request, what: Status) -> bytes:
    text = f"<Error><Code>{escape(what.code)}</Code><Message>asked for by a test</Message></Error>"
    body = b"" if request.method == "HEAD" else text.encode()
    return (
        f"HTTP/1.1 {what.status} {what.code}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Do what comes through the pipe, until it ends."""
    pipe: Pipe[Any, Any] = Pipe(int(sys.argv[1]))
    server = Server(int(sys.argv[2]), int(sys.argv[3]))
    commands: dict[str, Callable[..., Any]] = {
        "add": server.faults.add,
        "remove": server.faults.remove,
        "hits": server.faults.hits,
        "traffic": server.traffic,
        "go_away": server.go_away,
        "come_back": server.come_back,
    }

    while True:
        try:
            command, values = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # with all its threads

        try:
            answer = commands[command](*values)
        except Exception as error:
            answer = error
        pipe.send(answer)


if __name__ == "__main__":
    main()
