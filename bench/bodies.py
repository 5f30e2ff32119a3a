"""The bodies of sample messages: JSON of which about half compresses away, or random bytes.

JSON is what applications send, so it is the default. Random bytes are the worst that can come: no
compression makes them cheaper.
"""

from __future__ import annotations

import functools
import random
from typing import Final

JSON: Final = "json"
RANDOM: Final = "random"
KINDS: Final = (JSON, RANDOM)

_NAMES = ("customer_reference", "delivery_reference", "shipping_reference")
# A field of 64 bytes: its name, and 40 random hex digits. What is repeated, as the names are, any
# compression takes away; of the digits the lake's merged files (zstd) need half, new ones
# (snappy) all.
_VALUE_BYTES = 20
_FIELD_BYTES = len(f'"{_NAMES[0]}":"",') + 2 * _VALUE_BYTES
_REST = '"rest":""'


def body(kind: str, size: int, rng: random.Random) -> bytes:
    """Return a body of a kind, of exactly so many bytes.

    Errors: ValueError for another kind, or for JSON that is too short to be any.
    """
    if kind == RANDOM:
        return rng.randbytes(size)
    if kind != JSON:
        raise ValueError(f"no kind of body {kind!r}; there are: {', '.join(KINDS)}")
    count, text = _template(size)
    if not count:
        return text.encode()
    digits = rng.randbytes(count * _VALUE_BYTES).hex("%", _VALUE_BYTES)
    return (text % tuple(digits.split("%"))).encode()


@functools.lru_cache
def _template(size: int) -> tuple[int, str]:
    """Return how many values a JSON body of so many bytes has, and its text without them."""
    room = size - len("{}") - len(_REST)
    if room < 0:
        raise ValueError(f"a JSON body has {len(_REST) + 2} bytes or more, not {size}")
    count = room // _FIELD_BYTES
    fields = [f'"{_NAMES[number % len(_NAMES)]}":"%s"' for number in range(count)]
    rest = "x" * (room - count * _FIELD_BYTES)
    return count, "{" + ",".join([*fields, _REST.replace('""', f'"{rest}"')]) + "}"
