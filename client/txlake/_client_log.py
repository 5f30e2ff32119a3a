"""Repeated lines of a log: each is logged once, then once a minute.

librdkafka logs with each try to connect, several times a second, that no broker is there, and each
of a producer's three clients logs it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_EVERY_S: Final = 60.0
# A producer can ask for its id while a broker that has just started is still looking for its own
# log: librdkafka asks again, and nothing is lost.
_RETRIED: Final = "GETPID"
_NUMBERS: Final = re.compile(r"\d+")


@dataclass
class _Line:
    logged_at: float
    left_out: int = 0


class RepeatedLines:
    """A logger of lines that repeat: equal ones, numbers aside, are logged once a minute.

    It is thread-safe. Input: the logger to write to; a monotonic clock, s.
    """

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()

    def log(self, level: int, message: str, *values: object) -> None:
        """Logs a line, unless an equal one was logged within the last minute."""
        text = message % values if values else message
        left_out = self._left_out(_NUMBERS.sub("", text))
        if left_out is None:
            return

        suffix = f" ({left_out} more since this was logged last)" if left_out else ""
        self._logger.log(level, "%s%s", text, suffix)

    def _left_out(self, key: str) -> int | None:
        """Returns how many equal lines were left out before this one; None: it is left out."""
        now_s = self._now_s()

        with self._lock:
            line = self._lines.get(key)
            if line is not None and now_s - line.logged_at < _EVERY_S:
                line.left_out += 1
                return None

            # Lines of a broker that is gone do not stay for ever.
            self._lines = {
                other: kept
                for other, kept in self._lines.items()
                if now_s - kept.logged_at < 2 * _EVERY_S
            }
            self._lines[key] = _Line(now_s)
            return 0 if line is None else line.left_out


class ClientLogger:
    """The `logger` of a confluent-kafka client: librdkafka's lines in Python's logging.

    All clients of a process share `CLIENT_LOGGER`, and their names are left out: a line that each
    of them logs is written once.
    """

    def __init__(self, lines: RepeatedLines) -> None:
        self._lines = lines

    def log(self, level: int, _message: str, facility: str, _client: str, text: str) -> None:
        """Logs a line. Input: as confluent-kafka hands it over."""
        if facility == _RETRIED:
            level = min(level, logging.INFO)
        self._lines.log(level, "Kafka's client: %s %s", facility, text)


CLIENT_LOGGER: Final = ClientLogger(RepeatedLines(logging.getLogger("txlake.kafka")))
