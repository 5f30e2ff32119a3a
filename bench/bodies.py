"""The bodies of sample messages: JSON of which about half compresses away, or random bytes.

JSON is what applications send, so it is the default. Random bytes are the worst that can come: no
compression makes them cheaper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

JSON: Final = "json"
RANDOM: Final = "random"
KINDS: Final = (JSON, RANDOM)

_NAMES = ("customer_reference", "delivery_reference", "shipping_reference")
# A field of 64 bytes: its name, and 40 random hex digits. What is repeated, as the names are, any
# compression takes away; of the digits the lake's merged files (level 1 of zstd) need half, new
# ones (level -3) all.
_VALUE_BYTES = 20
_FIELD_BYTES = len(f'"{_NAMES[0]}":"",') + 2 * _VALUE_BYTES
_REST = '"rest":""'
_BLOCK_BYTES = 256 * 1024


def bodies(kind: str, size: int, seed: int = 1) -> Iterator[bytes]:
    """Returns bodies of a kind, each of exactly so many bytes, without end.

    Errors: ValueError for another kind, or for JSON that is too short to be any.
    """
    if kind == RANDOM:
        return _random_bytes(size, seed)
    if kind != JSON:
        raise ValueError(f"no kind of body {kind!r}; there are: {', '.join(KINDS)}")
    count, text = _template(size)
    if not count:
        return itertools.repeat(text.encode())
    values = _random_bytes(count * _VALUE_BYTES, seed)
    return ((text % tuple(v.hex("%", _VALUE_BYTES).split("%"))).encode() for v in values)


def _random_bytes(size: int, seed: int) -> Iterator[bytes]:
    """Returns random pieces; they are made in blocks, which costs a quarter of single ones."""
    source = np.random.SFC64(seed)
    while True:
        block = source.random_raw(max(size, _BLOCK_BYTES) // 8 + 1).tobytes()
        for start in range(0, len(block) - size + 1, max(size, 1)):
            yield block[start : start + size]


def _template(size: int) -> tuple[int, str]:
    """Return how many values a JSON body of so many bytes has, and its text without them."""
    room = size - len("{}") - len(_REST)
    if room < 0:
        raise ValueError(f"a JSON body has {len(_REST) + 2} bytes or more, not {size}")
    count = room // _FIELD_BYTES
    fields = [f'"{_NAMES[number % len(_NAMES)]}":"%s"' for number in range(count)]
    rest = "x" * (room - count * _FIELD_BYTES)
    return count, "{" + ",".join([*fields, _REST.replace('""', f'"{rest}"')]) + "}"
