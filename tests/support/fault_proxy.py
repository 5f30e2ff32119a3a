"""An HTTP proxy in front of a store: it counts the requests, and makes some of them fail.

It is a process of its own, because delta-rs holds Python's lock during some of its requests: a
thread of the same process would never get to answer them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.local_server.ports import Reservation
from pipelines.local_server.server import HOST
from tests.support.faults import Fault
from tests.support.traffic import Traffic

_ROOT = Path(__file__).parents[2]
_END_TIMEOUT_S = 30


class Running:
    """A fault that happens now, or did."""

    def __init__(self, proxy: FaultProxy, number: int) -> None:
        self._proxy = proxy
        self.number = number

    @property
    def hits(self) -> int:
        """Returns how often it has happened."""
        found: int = self._proxy.ask("hits", self.number)
        return found


class FaultProxy:
    """A proxy before a server of this machine, started and ended by `with`.

    What a client signs stays as it is, its Host header too.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = threading.Lock()
        self._held: Reservation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Returns the URL at which clients connect."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> FaultProxy:
        self._held = Reservation(HOST, 0)  # while it is away, too
        (self.port,) = self._held.ports

        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "tests.support.fault_server", str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, str(self.port), str(self._server_port)],
            cwd=_ROOT,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

        theirs.close()
        self.come_back()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._pipe is not None and self._process is not None and self._held is not None
        self._pipe.close()  # it ends with that
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._held.release()

    def ask(self, command: str, *values: object) -> Any:
        """Returns what the process answers to a command; an error of its is raised here."""
        assert self._pipe is not None
        with self._lock:
            self._pipe.send((command, values))
            answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def traffic(self) -> Traffic:
        """Returns what has passed until now."""
        found: Traffic = self.ask("traffic")
        return found

    def add(self, fault: Fault) -> Running:
        """Makes requests fail from now on."""
        return Running(self, self.ask("add", fault))

    def remove(self, running: Running) -> None:
        """Ends a fault. Replay: the second time does nothing."""
        self.ask("remove", running.number)

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[Running]:
        """Makes requests fail for a while."""
        running = self.add(fault)
        try:
            yield running
        finally:
            self.remove(running)

    def go_away(self) -> None:
        """Refuses connections from now on, and cuts those that are open."""
        self.ask("go_away")

    def come_back(self) -> None:
        """Accepts connections, at the same port as before."""
        self.ask("come_back")

    @contextmanager
    def away(self) -> Iterator[None]:
        """Is away for a while."""
        self.go_away()
        try:
            yield
        finally:
            self.come_back()
