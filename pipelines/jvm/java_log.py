"""The output of a job's JVM as lines of our log: JSON stays JSON, and no trace fills it.

A line of log4j (`conf/log4j2.properties`) keeps its level. Stack traces, of Java and of Spark's
Python workers, are at debug level: the driver finds out itself why an epoch ended, and logs it in
one line. So are the lines of TaskSetManager, which say earlier that a task has failed.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable
from typing import Final

from pipelines.output import printable

log = logging.getLogger("txlake.spark")

_FIRST_LINES: Final = 50
_END_S: Final = 2.0
_LINE: Final = re.compile(r"\d\d:\d\d:\d\d (WARN|ERROR|FATAL) (\w+): (.*)")
_LEVELS: Final = {"WARN": logging.WARNING, "ERROR": logging.ERROR, "FATAL": logging.CRITICAL}
_REPEATED_BY_THE_DRIVER: Final = ("TaskSetManager",)
_PYTHONS_TRACE: Final = "Traceback (most recent call last):"
# The lines of a trace: those that Java indents or begins so, and those that Python indents.
_OF_A_TRACE: Final = re.compile(r"\s|Caused by: |The above exception|During handling|$")
_EXCEPTION: Final = re.compile(r"[\w.$]+(Exception|Error|Interrupt|Exit)\b")


def levels(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    """Yields each line with its level; lines of traces follow the line that they belong to."""
    is_in_trace = False  # an exception can come next: it ends Python's trace, and begins Java's

    for line in lines:
        match = _LINE.fullmatch(line)
        if match is not None:
            is_repeated = match[2] in _REPEATED_BY_THE_DRIVER
            is_in_trace = True
            yield logging.DEBUG if is_repeated else _LEVELS[match[1]], f"{match[2]}: {match[3]}"
        elif line == _PYTHONS_TRACE:
            is_in_trace = True
            yield logging.DEBUG, line
        elif _OF_A_TRACE.match(line):
            yield logging.DEBUG, line
        else:
            yield logging.DEBUG if is_in_trace and _EXCEPTION.match(line) else logging.INFO, line
            is_in_trace = False


class JavaLog:
    """A pipe for a JVM's stderr, read by a thread until the JVM has ended. `fd`: where to write."""

    def __init__(self) -> None:
        self._read_fd, self.fd = os.pipe()
        self._first: list[str] = []
        self._thread = threading.Thread(target=self._run, name="txlake-jvm-log", daemon=True)
        self._thread.start()

    def __enter__(self) -> JavaLog:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)  # the JVM has its own

    def first_lines(self) -> list[str]:
        """Returns the first lines of a JVM that has ended."""
        self._thread.join(_END_S)
        return self._first

    def _run(self) -> None:
        with os.fdopen(self._read_fd, encoding="utf-8", errors="replace") as lines:
            for level, line in levels(line.rstrip("\n") for line in lines):
                if len(self._first) < _FIRST_LINES:
                    self._first.append(line)
                log.log(level, "%s", printable(line))
