"""The drivers of a chaos run, one or two: who is active, who stands by, who is suspended."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from bench.chaos.kills import SAYS, STREAMING
from bench.chaos.names import STANDBY
from pipelines.kafka_client.group_member import SESSION_TIMEOUT_MS
from tests.support.processes import Process

_SAYS_FIRST = "active"  # that it is, or who else
_REFUSED = "one driver at a time"
# How a driver's last sentence names another one.
_REPLACED = ("is the active driver of the lake", "another driver writes", "another process writes")


class Drivers:
    """The running drivers. `start_s`: how long a driver that is alone needed until it ran."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.start_s: list[float] = []
        self._running: dict[str, Process] = {}
        self._active: list[str] = []  # those that have said that they run, the newest last
        self._asleep_until: dict[str, float] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """The names of those that run, those that stand by first."""
        others = [name for name in self._running if name not in self._active]
        return (*others, *self._active)

    def started(self, name: str, process: Process) -> None:
        """Takes a process up."""
        self._running[name] = process

    def ended(self, name: str) -> None:
        """Forgets a process that has ended, or will at once."""
        self._running.pop(name)
        self._asleep_until.pop(name, None)
        if name in self._active:
            self._active.remove(name)

    def look(self) -> None:
        """Notes who has become active; wakes those that have slept long enough."""
        for name, process in self._running.items():
            if name not in self._active and process.has_said(*SAYS[STREAMING]):
                self._active.append(name)
                if len(self.names) == 1:
                    self.start_s.append(round(time.monotonic() - process.started_at, 1))
        for name, until in list(self._asleep_until.items()):
            if time.monotonic() > until:
                self.wake(name)

    def in_role(self, role: str) -> str | None:
        """Returns the active driver, or for STANDBY another one; None if there is none.

        One that is alone is always the active one.
        """
        if len(self.names) == 1:
            return self.names[0]
        awake = [name for name in self._active if name not in self._asleep_until]
        active = awake[-1] if awake else None
        if role != STANDBY:
            return active
        return next((name for name in self._running if name != active), None)

    def suspend(self, name: str, more_s: float) -> None:
        """Suspends all processes of a driver until Kafka does not count it, and a while more."""
        self._asleep_until[name] = time.monotonic() + SESSION_TIMEOUT_MS / 1000 + more_s
        self._running[name].signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Lets a driver go on, if it is suspended."""
        if self._asleep_until.pop(name, None) is not None:
            self._running[name].signal(signal.SIGCONT)

    def was_refused(self, process: Process) -> bool:
        """Returns whether a driver ended because of the lock; one of two warns of it, too."""
        if len(self.names) == 1:
            return process.has_said(_REFUSED)
        return _REFUSED in process.last_line()


def ended_well(process: Process, code: int | None) -> bool:
    """Returns whether a driver ended as it should after SIGTERM.

    Another one can have taken its lake at the same time, and at its very start it does not know
    the signal yet.
    """
    is_new = code == -signal.SIGTERM and not process.has_said(_SAYS_FIRST)
    return code == 0 or is_new or was_replaced(process)


def was_replaced(process: Process) -> bool:
    """Returns whether a driver ended with the sentence that another one has the lake."""
    return any(text in process.last_line() for text in _REPLACED)
