"""The HTTP server of one job: /metrics, /healthz and /readyz."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from pipelines.errors import StartError

log = logging.getLogger("txlake.metrics")

_TEXT: Final = "text/plain; charset=utf-8"
_IDLE_TIMEOUT_S: Final = 5.0  # of a client that does not send its request, or does not read
# The job's files and threads are its own: limits on requests at once, and on the time of each.
_REQUESTS_MAX: Final = 16
_REQUEST_S: Final = 10.0


class MetricsServer:
    """An HTTP server in threads of its own.

    Input: `not_ready_reason` returns a sentence, or an empty text if the job is ready.
    Errors: StartError if it cannot listen on the port.
    """

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, not_ready_reason: Callable[[], str]
    ) -> None:
        handler = _handler(registry, not_ready_reason)

        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bind_address = str(address[0]), port
            self._server = _server_type(family)(bind_address, handler)
        except (OSError, UnicodeError) as error:
            raise StartError(
                f"[metrics] host = {host!r}, port = {port}: metrics cannot be served there "
                f"({getattr(error, 'strerror', '') or error}); name another port, or 0 for none"
            ) from error

        self._thread = threading.Thread(
            target=self._server.serve_forever, name="txlake-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops the server and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server_type(family: socket.AddressFamily) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True
        block_on_close = False
        allow_reuse_port = False  # else a second job could listen on the port, too

        def __init__(self, *arguments: Any) -> None:
            self._free = threading.Semaphore(_REQUESTS_MAX)
            super().__init__(*arguments)

        def process_request(self, request: Any, client_address: Any) -> None:
            """Answers in a thread, or closes the connection at the limit of requests."""
            if self._free.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """Answers one request; closes its connection when its time is over."""
            timer = threading.Timer(_REQUEST_S, _disconnect, (request,))
            timer.daemon = True
            timer.start()

            try:
                super().process_request_thread(request, client_address)
            finally:
                timer.cancel()
                self._free.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            log.debug("a request was not answered", exc_info=True)

        def server_bind(self) -> None:
            """Binds, but asks no name server for the host's own name, unlike HTTPServer."""
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()

    return Server


def _disconnect(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


def _handler(
    registry: CollectorRegistry, not_ready_reason: Callable[[], str]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_TIMEOUT_S
        server_version = "txlake"
        sys_version = ""

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)

                case "/healthz":
                    self._answer(HTTPStatus.OK, b"ok\n")

                case "/readyz":
                    reason = not_ready_reason()
                    status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
                    self._answer(status, f"{reason or 'ok'}\n".encode())

                case _:
                    paths = b"/metrics, /healthz and /readyz are here\n"
                    self._answer(HTTPStatus.NOT_FOUND, paths)

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = _TEXT) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()

            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            log.debug(format, *arguments)

    return Handler
