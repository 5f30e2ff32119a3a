"""How much this process reads, of disks or of what the system keeps of them in memory."""

from __future__ import annotations

import os


def read_bytes() -> int:
    """Return how many bytes this process has read so far."""
    with open(f"/proc/{os.getpid()}/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])
