"""The time of consumers' sessions, as a test sets it: no machine is too slow to keep one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

_MODULES = ("_ownership", "_members", "_compare_and_set")


class SessionClock:
    """What consumers of this process take for the time of their sessions, from now on.

    Who waits for the end of a session waits by this clock; `while_waiting` is called in each pause.
    How often a consumer looks for messages and for other members goes by the real one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        self.while_waiting: Callable[[], Any] = lambda: None
        self._began_at = datetime.now(timezone.utc)

        clock = SimpleNamespace(monotonic=lambda: 1_000_000.0 + self.passed_s, sleep=self._sleep)
        instants = SimpleNamespace(now=lambda _zone: self.now())
        for module in _MODULES:
            monkeypatch.setattr(f"txlake.{module}.time", clock)
            monkeypatch.setattr(f"txlake.{module}.datetime", instants)

    def now(self) -> datetime:
        """Return the instant that a commit made now has."""
        return self._began_at + timedelta(seconds=self.passed_s)

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.passed_s += seconds

    def _sleep(self, pause_s: float) -> None:
        self.pass_s(pause_s)
        self.while_waiting()
