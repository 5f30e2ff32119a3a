"""The addresses of the console: the page of each name, id and problem."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

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
    ("/publishers", "Publishers"),
)
# The page of PAGES to which another one belongs.
_SECTIONS: Final = {
    "/story": "/transactions",
    "/find": "/transactions",
    "/record": "/transactions",
    "/commit": "/transactions",
    "/rollback": "/transactions",
    "/ask": "/groups",
    "/resume": "/dead",
    "/cancel": "/delayed",
    "/topic": "/topics",
    "/messages": "/topics",
    "/message": "/topics",
    "/create_topic": "/topics",
    "/alter_topic": "/topics",
    "/skip": "/publishers",
    "/consumer": "/consumers",
    "/position": "/consumers",
    "/consumer_dead": "/consumers",
    "/consumer_retries": "/consumers",
    "/consumer_resume": "/consumers",
    "/consumer_drop": "/consumers",
}
_STORIES: Final = ("half:", "schedule:")
# The place of a delivered message, as `tx list` shows it.
_PLACE: Final = re.compile(r"(?P<topic>.+):(?P<queue>[0-9]+)-(?P<offset>[0-9]+)", re.ASCII)


def url(path: str, /, **values: Any) -> str:
    """Returns a path with its query; empty values are left out."""
    kept = {name: value for name, value in values.items() if value not in (None, "", ())}
    query = urlencode(kept, doseq=True, errors="replace")
    return quote(path, errors="replace") + (f"?{query}" if query else "")


def with_query(address: str, /, **values: Any) -> str:
    """Returns an address with other values in its query."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return url(parts.path, **{**query, **values})


def section_of(path: str) -> str:
    """Returns the page of PAGES to which a page belongs."""
    return _SECTIONS.get(path, path)


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
            return url("/find", keys=value)
        case "topic" | "real_topic":
            return url("/topic", name=value)
        case "delivery":
            match = _PLACE.fullmatch(str(value))
            return None if match is None else url("/message", **match.groupdict())
        case "queue_offset" if "message_topic" in row:
            place = {"queue": row["queue_id"], "offset": value}
            return url("/message", topic=row["message_topic"], **place)
        case "dead" if value and "consumer_group" in row:
            return url("/consumer_dead", group=row["consumer_group"])
        case "retrying" if value and "consumer_group" in row:
            return url("/consumer_retries", group=row["consumer_group"])
        case "consumer_group":
            return url("/consumer", group=value)
    return None
