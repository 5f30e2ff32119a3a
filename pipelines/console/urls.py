"""The addresses of the console: the page of each name, id and problem."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

from pipelines.explain.rows import Row
from txlake.protocol import TRANSACTION_ID_PATTERN, matches

PAGES: Final = (
    ("/", "Overview"),
    ("/transactions", "Transactions"),
    ("/dead", "Dead"),
    ("/groups", "Groups"),
    ("/conflicts", "Conflicts"),
    ("/topics", "Topics"),
    ("/consumers", "Consumers"),
    ("/delayed", "Delayed"),
)
_STORIES: Final = ("half:", "schedule:")


def url(path: str, /, **values: Any) -> str:
    """Returns a path with its query; empty values are left out."""
    kept = {name: value for name, value in values.items() if value not in (None, "", ())}
    query = urlencode(kept, doseq=True, errors="replace")
    return quote(path, errors="replace") + (f"?{query}" if query else "")


def link(name: str, row: Row) -> str | None:
    """Returns the address to which a cell of a row leads, if any. Input: the column's name."""
    value = row[name]
    if value is None or value == "":
        return None

    match name:
        case "target" | "half":
            return url("/story", of=value) if str(value).startswith(_STORIES) else None
        case "transaction_id":
            # The id of an unreadable half can be any text.
            is_id = matches(TRANSACTION_ID_PATTERN, str(value))
            return url("/story", of=f"id:{value}") if is_id else None
        case "producer_group":
            return url("/transactions", group=value, state="all")
        case "keys":
            return url("/find", q=value)
        case "topic" | "real_topic":
            return url("/topic", name=value)
        case "consumer_group":
            return url("/consumer", group=value)
    return None
