"""What a process group and its descendants use of processor and memory, from /proc.

Spark's Python workers have a group of their own: their ancestors say whose they are.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat after the name.
_PARENT, _GROUP, _USER, _SYSTEM = 1, 2, 11, 12


def _members(group: int) -> dict[int, list[str]]:
    """Return the processes of a group and their descendants, by id: the fields of their `stat`."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            processes[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()

    found = {}
    for pid, fields in processes.items():
        ancestor: list[str] | None = fields
        while ancestor is not None and int(ancestor[_GROUP]) != group:
            ancestor = processes.get(int(ancestor[_PARENT]))

        if ancestor is not None:
            found[pid] = fields
    return found


def processor_s(group: int) -> float:
    """Return the processor time of all living processes. Units: s."""
    return sum(int(f[_USER]) + int(f[_SYSTEM]) for f in _members(group).values()) / _TICKS


def own_processor_s(pid: int) -> float:
    """Return the processor time of one process: of all its threads, and of none of its children.

    Units: s.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def resident_bytes(group: int) -> int:
    """Return the resident memory; a page that processes share counts once ("Pss")."""
    return sum(map(_proportional_bytes, _members(group)))


def _proportional_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


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
