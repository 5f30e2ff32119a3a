"""HTTP/1.1 as a proxy needs it: heads and bodies, passed on byte for byte."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = 1 << 16
# Answers that have no body, whatever their head says.
_BODILESS = (204, 304)


@dataclass(frozen=True)
class Head:
    """The first line and the header lines of a request or an answer."""

    start: str
    lines: tuple[str, ...]

    @property
    def status(self) -> int:
        """Returns the status of an answer."""
        return int(self.start.split(" ")[1])

    @property
    def is_chunked(self) -> bool:
        """Returns whether the body comes in chunks."""
        return "chunked" in (self.get("transfer-encoding") or "").lower()

    @property
    def ends_connection(self) -> bool:
        """Returns whether nothing follows on this connection."""
        return (self.get("connection") or "").lower() == "close"

    def get(self, name: str) -> str | None:
        """Returns the value of a header."""
        for line in self.lines:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def without(self, name: str) -> Head:
        """Returns the same head without a header."""
        kept = (line for line in self.lines if line.partition(":")[0].strip().lower() != name)
        return Head(self.start, tuple(kept))

    def raw(self) -> bytes:
        """Returns the head as it is sent."""
        return "\r\n".join([self.start, *self.lines, "", ""]).encode("latin-1")


class Connection:
    """A TCP connection that reads heads and bodies. `None`: one that was never made."""

    def __init__(self, connected: socket.socket | None) -> None:
        self._socket = connected
        self._reader = connected.makefile("rb") if connected else None
        if connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def is_usable(self) -> bool:
        """Returns whether a request can be sent: it is open, and nothing is left to be read."""
        if self._socket is None:
            return False
        look = select.poll()  # select() knows no descriptor above 1023
        look.register(self._socket, select.POLLIN)
        return not look.poll(0)

    def close(self) -> None:
        """Ends it. Replay: the second time does nothing."""
        if self._socket is not None and self._reader is not None:
            self._reader.close()
            self._socket.close()
            self._socket = self._reader = None

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        assert self._socket is not None
        self._socket.sendall(data)

    def read_head(self) -> Head | None:
        """Returns the next head; None at the end of the connection."""
        lines: list[str] = []
        while True:
            line = self._line().decode("latin-1")
            if not line.endswith("\n"):
                return None
            if line.strip():
                lines.append(line.rstrip("\r\n"))
            elif lines:
                return Head(lines[0], tuple(lines[1:]))

    def read_answer(self) -> Head | None:
        """Returns the head of the answer, after those that only say that there will be one."""
        while (head := self.read_head()) is not None and head.status < 200:
            pass
        return head

    def body(self, head: Head, *, is_answer: bool = False, method: str = "") -> Iterator[bytes]:
        """Returns the body in pieces, as it is on the wire.

        Errors: OSError if the connection ends within it.
        """
        if is_answer and (method == "HEAD" or head.status in _BODILESS):
            return
        length = head.get("content-length")
        if head.is_chunked:
            yield from self._chunks()
        elif length is not None:
            yield from self._exactly(int(length))
        elif is_answer:
            raise OSError("an answer whose end nobody can tell")

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._line()
            if not line:
                raise OSError("the connection ended within a body")

            yield line
            size = int(line.partition(b";")[0], 16)
            if size == 0:
                break

            yield from self._exactly(size + 2)
        while True:  # trailers, and the empty line
            line = self._line()
            yield line
            if line in (b"\r\n", b""):
                return

    def _exactly(self, count: int) -> Iterator[bytes]:
        assert self._reader is not None
        while count > 0:
            piece = self._reader.read1(min(count, _BLOCK))
            if not piece:
                raise OSError("the connection ended within a body")
            count -= len(piece)
            yield piece

    def _line(self) -> bytes:
        assert self._reader is not None
        return self._reader.readline(_BLOCK)
