"""The processor time of a job: of this process, of its JVM, and of Spark's Python workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
# Fields of /proc/PID/stat behind the name, which can hold spaces: parent, and time in ticks.
_PARENT, _USER, _SYSTEM = 1, 11, 12
_LISTED_S: Final = 10.0  # between two looks for new workers, each of which takes some ms


class ProcessorTime:
    """The processor time of some processes and of all that they have started, in s.

    A process that ends takes its time with it, so the time can fall. Without /proc it is that of
    this process alone. Input: the processes' numbers.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = frozenset(pids)
        self._pids: frozenset[int] = frozenset()
        self._listed_at: float | None = None  # monotonic s

    def __call__(self) -> float:
        if not _PROC.is_dir():
            return time.process_time()

        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at > _LISTED_S:
            self._pids = _with_descendants(self._roots)
            self._listed_at = now

        ticks = sum(
            int(fields[_USER]) + int(fields[_SYSTEM]) for fields in map(_stat, self._pids) if fields
        )
        return ticks / os.sysconf("SC_CLK_TCK")


def _with_descendants(roots: frozenset[int]) -> frozenset[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))

    pids = set(roots)
    remaining = list(roots)
    while remaining:
        new = [pid for pid in children.get(remaining.pop(), []) if pid not in pids]
        pids.update(new)
        remaining += new
    return frozenset(pids)


def _stat(pid: int) -> list[str]:
    """Returns the fields of a process behind its name; none if it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
