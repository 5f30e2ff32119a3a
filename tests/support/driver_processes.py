"""Processes without Spark that work on a lake as a driver does, and can be suspended.

They are forked from a server that has imported everything: each begins within some milliseconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from pipelines.cli.main import known_errors
from tests.support.processes import is_suspended
from tests.support.wait import DEADLINE_S, wait_until


def stop_here() -> None:
    """Suspends this process, all its threads, until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


class DriverProcess:
    """A process that does one thing to a lake. Input: its log, what it does, with which values."""

    def __init__(self, log: Path, work: Callable[..., None], *values: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.suspensions"])
        self._log = log
        self._process = context.Process(target=_run, args=(str(log), work, values))
        self._process.start()

    def wait_until_stopped(self) -> None:
        """Waits until all threads of the process are suspended; fails when it has ended."""

        def is_stopped() -> bool:
            assert self._process.is_alive() and self._process.pid is not None, self.said()
            return is_suspended(self._process.pid)

        wait_until(is_stopped, "the driver stops itself", seen=self.said)

    def go_on(self) -> None:
        """Wakes the process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def require_end(self, code: int) -> None:
        """Waits until it has ended by itself, with an exit code."""
        self._process.join(DEADLINE_S)
        assert self._process.exitcode == code, (self._process.exitcode, self.said())

    def said(self) -> str:
        """Returns what it has said."""
        return self._log.read_text() if self._log.exists() else ""

    def end(self) -> None:
        """Kills it, if it still runs."""
        self._process.kill()
        self._process.join()
        self._process.close()


@contextlib.contextmanager
def driver(log: Path, work: Callable[..., None], *values: Any) -> Iterator[DriverProcess]:
    """Yields a process; kills it at the end."""
    process = DriverProcess(log, work, *values)
    try:
        yield process
    finally:
        process.end()


def _run(log: str, work: Callable[..., None], values: tuple[Any, ...]) -> None:
    """Does the work as the command line does: a known error is one sentence and exit code 1."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # DuckDB draws a progress bar for a program that has no file, as for one that is typed.
    sys.modules["__main__"].__file__ = __file__
    try:
        work(*values)
    except known_errors() as error:
        failure = click.ClickException(str(error))
        failure.show()
        sys.exit(failure.exit_code)
