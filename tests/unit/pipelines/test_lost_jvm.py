"""How a JVM that has ended shows in Python."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil

from pipelines.jvm.session import reap_jvm_at_its_end
from tests.support.wait import wait_until

# A process of its own: py4j leaves its sockets to the garbage collector.
PROGRAM = """
import socket, threading
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from pipelines.jvm.session import JVM_LOST

def end_with_the_first_call():
    connection, _ = server.accept()
    connection.recv(1)
    server.close()
    connection.close()

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
gateway = ClientServer(JavaParameters(port=port), PythonParameters(port=0, eager_load=False))
threading.Thread(target=end_with_the_first_call).start()
for _ in range(3):
    try:
        gateway.jvm.System.nanoTime()
    except JVM_LOST as error:
        print(type(error).__name__)
"""


def test_each_error_of_a_jvm_that_ends_is_known() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    seen = ran.stdout.split()
    assert len(seen) == 3
    assert "ConnectionRefusedError" in seen


@contextmanager
def session_of_a_child() -> Iterator[tuple[Any, int]]:
    """Give a session whose JVM is a process that waits, and its number."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gateway = SimpleNamespace(proc=child)
    try:
        yield SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway)), child.pid
    finally:
        child.communicate()


def test_a_jvm_that_has_ended_is_no_child_that_a_notebooks_kernel_waits_for() -> None:
    with session_of_a_child() as (session, pid):
        reap_jvm_at_its_end(session)
        reap_jvm_at_its_end(session)  # a second session of the same JVM
        names = [thread.name for thread in threading.enumerate()]
        assert names.count(f"end of JVM {pid}") == 1

        psutil.Process(pid).kill()
        wait_until(lambda: not psutil.pid_exists(pid), "the child is forgotten")
