"""A real broker behind a link of its own, which can be slow."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from pipelines.local_broker.broker import Broker
from pipelines.local_server.server import HOST

_CHUNK_BYTES = 4096


class SlowBroker(Broker):
    """A broker on loopback that all clients reach by a proxy.

    `bytes_per_s`: the rate of its answers, of each connection; None: as they come.
    """

    def __init__(self, folder: Path) -> None:
        self.bytes_per_s: int | None = None
        self._listener = socket.create_server((HOST, 0))
        self.link = f"{HOST}:{self._listener.getsockname()[1]}"
        super().__init__(folder, properties={"advertised.listeners": f"BROKER://{self.link}"})
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection((HOST, self.port))
            except OSError:  # it is starting
                client.close()
                continue
            for ends in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._hand_on, args=ends, daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket, are_answers: bool) -> None:
        with closing(target), suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                target.sendall(data)
                if are_answers and self.bytes_per_s is not None:
                    time.sleep(len(data) / self.bytes_per_s)
