"""What a process group and its descendants use of processor and memory, from /proc.

Spark's Python workers have a group of their own: their ancestors say whose they are.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat after the name.
_PARENT, _GROUP, _USER, _SYSTEM, _RESIDENT = 1, 2, 11, 12, 21


def _fields(group: int) -> Iterator[list[str]]:
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            processes[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    for fields in processes.values():
        ancestor: list[str] | None = fields
        while ancestor is not None and int(ancestor[_GROUP]) != group:
            ancestor = processes.get(int(ancestor[_PARENT]))
        if ancestor is not None:
            yield fields


def processor_s(group: int) -> float:
    """Give the processor time of all living processes. Units: s."""
    return sum(int(f[_USER]) + int(f[_SYSTEM]) for f in _fields(group)) / _TICKS


def own_processor_s(pid: int) -> float:
    """Return the processor time of one process: of all its threads, and of none of its children.

    Units: s.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def resident_bytes(group: int) -> int:
    """Give the resident memory; pages that two of the processes share count twice."""
    return sum(int(f[_RESIDENT]) for f in _fields(group)) * _PAGE


def own_resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


class Watch:
    """Look at a group's memory every half second, for the length of a block."""

    def __init__(self, group: int, pause_s: float = 0.5) -> None:
        self.resident_bytes: list[int] = []
        self._group, self._pause_s = group, pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.resident_bytes.append(resident_bytes(self._group))
            self._ended.wait(self._pause_s)
