"""The console's connections: how many there may be, and how long a request may take to arrive.

A client that opens connections and sends half a request on each would else use up the process's
file descriptors, and every accept after that fails with a traceback.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 128
# Files that the process opens beside connections: the lake's, libraries, Kafka's clients.
_OTHER_FILES: Final = 128
_CONNECTIONS_MIN: Final = 8
REQUEST_S: Final = 10.0


def connections_max() -> int:
    """Returns how many connections the console keeps: fewer where `ulimit -n` is low."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX

    return max(_CONNECTIONS_MIN, min(CONNECTIONS_MAX, (files - _OTHER_FILES) // 2))


class LimitedConnection(H11Protocol):
    """One connection: closed at once above the limit, and when a request comes too slowly.

    The time of a request is counted from the connection, or from the answer before; the client has
    until then to send its headers and its body.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._maximum = connections_max()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Takes a new connection, or closes it."""
        super().connection_made(transport)

        if len(self.connections) > self._maximum:
            transport.abort()
        else:
            self._begin_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the request with its connection."""
        self._end_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request; a whole one may take as long as its answer does."""
        super().data_received(data)

        if self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self._end_request()

    def on_response_complete(self) -> None:
        """Waits for the next request of this connection."""
        super().on_response_complete()

        if not self.transport.is_closing():
            self._begin_request()

    def _begin_request(self) -> None:
        self._end_request()
        self._timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _end_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
