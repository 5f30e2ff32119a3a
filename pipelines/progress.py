"""The progress of a command: a bar with its end on a terminal, a line every 10 s elsewhere."""

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
def progress_bar(label: str, unit: str, stream: TextIO | None = None) -> Iterator[Meter]:
    """Yields a function that shows the progress; call it with the number done and the total.

    Input: the label and the unit of the work; `stream`: where it is shown, by default stderr.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _lines(label, unit, stream)
        return

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit},"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )

    with Progress(*columns, console=Console(file=stream)) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(label: str, unit: str, stream: TextIO) -> Meter:
    started_at = time.monotonic()
    printed_at = started_at

    def print_progress(done: int, total: int) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at < _LINE_EVERY_S:
            return

        printed_at = now
        rate = done / (now - started_at)
        time_left = f"{(total - done) / rate:.0f} s left" if rate else "time left unknown"
        share = 100 * done // total if total else 100
        line = f"{label}: {done:,} of {total:,} {unit} ({share} %), {rate:,.0f}/s, {time_left}"
        print(line, file=stream, flush=True)

    return print_progress
