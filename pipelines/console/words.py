"""The words of the console's tables: a column's heading, the look of a status, a shortened text.

The commands and the exports keep the columns' own names; a heading's tooltip has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipelines.output import heading as unit_heading
from pipelines.output import printable

Row = Mapping[str, Any]

# A column whose name does not say it well, as words and without `_at`.
_HEADINGS: Final = {
    "admin_offset": "Record",
    "begin_offset": "First offset",
    "born_at": "Made",
    "check_times": "Checks",
    "deliver_at": "Due",
    "end_offset": "Next offset",
    "expected": "What would come of it",
    "half_queue_offset": "Half offset",
    "keeps_bytes": "Keeps, size",
    "keeps_ms": "Keeps, time",
    "members": "Listeners",
    "new_offset": "New position",
    "on_disk_bytes": "On disk",
    "op_queue_offset": "Operation",
    "preview": "Body",
    "queue_id": "Queue",
    "queue_offset": "Offset",
    "real_topic": "Topic",
    "what": "Where it stands",
}
# The look of a status: good, bad, wait, off. Its words say the same.
_LOOKS: Final = {
    "COMMITTED": "good",
    "DELIVERED": "good",
    "PENDING": "wait",
    "DELAYED": "wait",
    "WAITING": "wait",
    "ROLLED_BACK": "off",
    "CANCELLED": "off",
    "DISCARDED": "bad",
    "UNDELIVERABLE": "bad",
    "UNREADABLE": "bad",
    "NOT_DELIVERED": "wait",
    "HAS_READ": "good",
    "HAS_NOT_READ": "wait",
    "COMES_AGAIN": "wait",
    "GIVEN_UP": "bad",
}
_STATUSES: Final = ("status", "delivery", "outcome", "state", "reason", "cause")
# Sentences wrap; other texts stand in one line, shortened in the middle.
_SENTENCES: Final = ("expected", "result", "what", "topics", "owners", "last_reason", "why")
_TEXT_MAX: Final = 26


def heading(name: str) -> str:
    """Returns the heading of a column in words."""
    words = unit_heading(name).removesuffix("_at").replace("_", " ").capitalize()
    return _HEADINGS.get(name, words)


def status_look(text: str) -> str:
    """Returns the look of a status: good, bad, wait or off."""
    upper = str(text).upper().replace(" ", "_")
    if "UNDELIVERABLE" in upper:  # a committed one, too
        return "bad"
    return next((look for status, look in _LOOKS.items() if upper.startswith(status)), "off")


def status_words(text: str) -> str:
    """Returns a status in words: `Rolled back`, not `ROLLED_BACK`."""
    words = str(text).replace("_", " ").lower()
    return words[:1].upper() + words[1:]


def is_status(name: str) -> bool:
    """Returns whether a column holds a status."""
    return name in _STATUSES


def is_sentence(name: str) -> bool:
    """Returns whether a column holds texts of several words, which wrap."""
    return name in _SENTENCES


def is_number(name: str, value: Any) -> bool:
    """Returns whether a value is one of a column of numbers, which stand on the right."""
    is_amount = isinstance(value, int) and not isinstance(value, bool)
    return is_amount and not name.endswith("_at") and name != "since"


def filled(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Returns the columns in which some row has a value: an empty one takes room from the rest."""
    return [name for name in columns if any(row[name] not in (None, "", []) for row in rows)]


def is_numeric(name: str, rows: Sequence[Row]) -> bool:
    """Returns whether a column is one of numbers."""
    values = [row[name] for row in rows if row[name] is not None]
    return bool(values) and all(is_number(name, value) for value in values)


def shorten(text: Any, maximum: int = _TEXT_MAX) -> str:
    """Returns a text in one line, its middle left out where it is longer than `maximum`."""
    shown = printable(str(text))
    if len(shown) <= maximum:
        return shown

    tail = maximum // 2 - 1
    return f"{shown[: maximum - tail - 1]}…{shown[-tail:]}"


def is_shortened(text: Any) -> bool:
    """Returns whether `shorten` leaves out a part."""
    return len(printable(str(text))) > _TEXT_MAX
