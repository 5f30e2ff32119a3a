"""The form of the job's log: text for people, or one JSON object a line."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """A record as one line of JSON: at, level, logger, message, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line. An exception is the field `error`."""
        at = dt.datetime.fromtimestamp(record.created, dt.timezone.utc)
        line = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def begin(level: str, form: str) -> None:
    """Lets this process log to stderr: ours from a level on, others' from INFO on at most.

    Input: "debug", "info" or "warning"; "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    number = int(logging.getLevelName(level.upper()))
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler])
    logging.getLogger("txlake").setLevel(number)
