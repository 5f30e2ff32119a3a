"""How far a command is: a bar with its end on a terminal, a line every 10 s elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

Meter = Callable[[int, int], None]


@contextmanager
def progress_bar(what: str, unit: str, stream: TextIO | None = None) -> Iterator[Meter]:
    """Yields what shows how many of how many are done; call it with both.

    Input: what is done, and its unit; `stream`: where it is shown, by default stderr.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _lines(what, unit, stream)
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit},"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(what: str, unit: str, stream: TextIO) -> Meter:
    started = told_at = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at < _LINE_EVERY_S:
            return
        told_at, rate = now, done / (now - started)
        left = f"{(total - done) / rate:.0f} s left" if rate else "no end in sight"
        share = 100 * done // total if total else 100
        told = f"{what}: {done:,} of {total:,} {unit} ({share} %), {rate:,.0f}/s, {left}"
        print(told, file=stream, flush=True)

    return tell
