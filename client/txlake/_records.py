"""The headers of a Kafka record, also of one that has a header whose name is not UTF-8.

Kafka takes any bytes as a name. Its client for Python sets an error then, and returns headers all
the same: pairs with a hole in place of a name. A call `record.headers()` that Python has
specialised does not look for the error, and code that unpacks such a pair ends the process with a
segmentation fault.
"""

from __future__ import annotations

import gc
from operator import methodcaller
from typing import Any

Header = tuple[str, "bytes | None"]

# A call that Python does not specialise: it always meets the error.
_call_headers = methodcaller("headers")


def readable_headers(record: Any) -> tuple[list[Header], int]:
    """Returns the headers of a record whose names are UTF-8, and how many others it has."""
    try:
        return _call_headers(record) or [], 0
    except (SystemError, UnicodeDecodeError):
        pairs = _call_headers(record)  # the client has kept the pairs that it has made

    # The garbage collector's view of a pair leaves a hole out.
    readable = [pair for pair in pairs if len(gc.get_referents(pair)) == 2]
    return readable, len(pairs) - len(readable)
