"""The faults of a proxy while it runs: how often each has happened, and what it waits for."""

from __future__ import annotations

import re
import threading
import time
from collections import deque

from tests.support.faults import Fault, Request, Slow, Throttle, Together, What

_TOGETHER_TIMEOUT_S = 60.0


class ActiveFault:
    """A fault with its counts. Its caller sees to it that one thread at a time asks `strikes`."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.hits = 0
        self.is_removed = False
        self._matched = 0
        self._passed_at: deque[float] = deque()
        together = fault.what.count if isinstance(fault.what, Together) else 1
        self._barrier = threading.Barrier(together, timeout=_TOGETHER_TIMEOUT_S)

    def strikes(self, request: Request) -> bool:
        """Returns whether it happens to this request, and counts it."""
        fault = self.fault
        if self.is_removed or self.hits == fault.times:
            return False

        if fault.method not in ("", request.method) or fault.kind not in ("", request.kind):
            return False

        if not re.search(fault.key, request.key):
            return False

        self._matched += 1
        if self._matched % fault.every:
            return False

        if isinstance(fault.what, Throttle) and not self._is_beyond(fault.what.per_second):
            return False

        self.hits += 1
        return True

    def wait(self) -> None:
        """Waits, if that is the fault.

        Errors: threading.BrokenBarrierError if the others do not come.
        """
        if isinstance(self.fault.what, Slow):
            time.sleep(self.fault.what.seconds)
        elif isinstance(self.fault.what, Together):
            self._barrier.wait()

    def _is_beyond(self, per_second: int) -> bool:
        now_s = time.monotonic()
        while self._passed_at and self._passed_at[0] <= now_s - 1.0:
            self._passed_at.popleft()
        if len(self._passed_at) >= per_second:
            return True
        self._passed_at.append(now_s)
        return False


class ActiveFaults:
    """All faults of a proxy, by number. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[ActiveFault] = []

    def add(self, fault: Fault) -> int:
        """Adds a fault; returns its number."""
        with self._lock:
            self._faults.append(ActiveFault(fault))
            return len(self._faults) - 1

    def remove(self, number: int) -> None:
        """Ends a fault; its hits can still be looked at."""
        with self._lock:
            self._faults[number].is_removed = True

    def hits(self, number: int) -> int:
        """Returns how often a fault has happened."""
        with self._lock:
            return self._faults[number].hits

    def of(self, request: Request) -> tuple[list[ActiveFault], What | None]:
        """Returns what a request waits for, and what else happens to it, if anything.

        Of several faults the one that was added first.
        """
        waits: list[ActiveFault] = []
        with self._lock:
            for active in self._faults:
                if not active.strikes(request):
                    continue
                if not isinstance(active.fault.what, Slow | Together):
                    return waits, active.fault.what
                waits.append(active)
        return waits, None
