"""How far a command is: a bar with its end on a terminal, a line every 10 s elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LINE_EVERY_S = 10.0


class Meter:
    """A count of how many of how many are done; call it with both.

    Input: what is done, and its unit; `stream`: where it is shown, by default stderr.
    """

    def __init__(self, what: str, unit: str, stream: TextIO | None = None) -> None:
        self._what, self._unit = what, unit
        self._stream = stream or sys.stderr
        self._started = self._told_at = time.monotonic()
        self._progress: Progress | None = None
        if self._stream.isatty():
            self._progress = Progress(
                TextColumn(what),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(f"{unit},"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
            )
            self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Meter:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Shows that so many of so many are done."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total)
            return
        now = time.monotonic()
        if now - self._told_at >= _LINE_EVERY_S:
            self._told_at = now
            print(self._line(done, total, now - self._started), file=self._stream, flush=True)

    def _line(self, done: int, total: int, seconds: float) -> str:
        rate = done / seconds
        left = f"{(total - done) / rate:.0f} s left" if rate else "no end in sight"
        share = 100 * done // total if total else 100
        return (
            f"{self._what}: {done:,} of {total:,} {self._unit} ({share} %), {rate:,.0f}/s, {left}"
        )
