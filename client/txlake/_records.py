"""The headers of a Kafka record, also of one whose header's name is not text.

Kafka's client for Python raises SystemError at the first look at such a record, or nothing at all
when its call was specialized by the interpreter, and gives a list with holes then: whoever walks
through it ends the process. The garbage collector's view of a list leaves the holes out.
"""

from __future__ import annotations

import gc
from operator import methodcaller
from typing import Any

Header = tuple[str, "bytes | None"]

# A call that the interpreter does not specialize: an error that the client leaves behind is raised
# here, not at some later call.
_call_headers = methodcaller("headers")


def readable_headers(record: Any) -> tuple[list[Header], int]:
    """Returns the headers of a record whose names are UTF-8, and how many others it has."""
    try:
        headers = _call_headers(record)
    except (SystemError, UnicodeDecodeError):
        headers = _call_headers(record)  # the client has kept what it has made of them

    if not headers:
        return [], 0
    readable = gc.get_referents(headers)
    return readable, len(headers) - len(readable)
