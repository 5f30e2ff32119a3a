"""Signals that stop a command: each may come twice, at once, and when all is over."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from pipelines.cli.main import run_job
from pipelines.cli.stop_limit import StopLimit
from pipelines.job import driver as driver_module
from pipelines.settings import parse
from tests.support.wait import DEADLINE_S

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StoppedDriver:
    """A driver that gets a signal while it runs, and another one when it has ended."""

    epochs = None
    is_stopping = True

    def __init__(self, *_: object, **__: object) -> None:
        self._stopped = threading.Event()
        self.stops = 0

    def run(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        assert self._stopped.wait(DEADLINE_S)

    def stop(self) -> None:
        self.stops += 1
        self._stopped.set()

    def finish(self) -> None:
        for number in SIGNALS:
            signal.raise_signal(number)
        assert self.stops == 3


def test_a_signal_to_a_job_that_has_ended_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver_module, "Driver", StoppedDriver)
    settings = parse({"lake": {"path": str(tmp_path)}, "kafka": {"bootstrap_servers": "x:1"}}, "x")
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        run_job(settings)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_of_signals_that_come_at_once_one_begins_the_limit() -> None:
    limit = StopLimit("nothing")
    gate = threading.Barrier(8)
    begun: list[bool] = []

    def begin() -> None:
        gate.wait(DEADLINE_S)
        begun.append(limit.begin())

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limit.end()
    assert sorted(begun) == [False] * 7 + [True]
