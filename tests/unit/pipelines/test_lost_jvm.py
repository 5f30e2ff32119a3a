"""How a JVM that has ended shows in Python."""

from __future__ import annotations

import socket
import threading

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from pipelines.jvm.session import JVM_LOST


def end_with_the_first_call(server: socket.socket) -> None:
    """Takes one connection, and ends, as a JVM that is killed while it is asked."""
    connection, _ = server.accept()
    connection.recv(1)
    server.close()
    connection.close()


def test_each_error_of_a_jvm_that_ends_is_known() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    gateway = ClientServer(  # what PySpark has
        JavaParameters(port=server.getsockname()[1]), PythonParameters(port=0, eager_load=False)
    )
    ending = threading.Thread(target=end_with_the_first_call, args=[server])
    ending.start()
    seen = []
    for _ in range(3):
        with pytest.raises(JVM_LOST) as raised:
            gateway.jvm.System.nanoTime()
        seen.append(raised.type)
    ending.join()
    assert ConnectionRefusedError in seen
