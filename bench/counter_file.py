"""Numbers that one process writes again and again and another reads, in a small file."""

from __future__ import annotations

import os
from pathlib import Path

_DIGITS = 20


class CounterFile:
    """Some whole numbers in a file; written in one piece, so that no reader sees half of them."""

    def __init__(self, path: Path, count: int) -> None:
        self._count = count
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def write(self, *numbers: int) -> None:
        """Write all of the numbers."""
        text = "".join(f"{number:{_DIGITS}d}" for number in numbers)
        os.pwrite(self._fd, text.encode(), 0)

    def read(self) -> tuple[int, ...]:
        """Read all of the numbers; zeros while nothing was written."""
        text = os.pread(self._fd, _DIGITS * self._count, 0)
        if not text:
            return (0,) * self._count
        starts = range(0, len(text), _DIGITS)
        return tuple(int(text[start : start + _DIGITS]) for start in starts)

    def __del__(self) -> None:
        os.close(self._fd)
