"""The rows of `epochs` as a chain: each holds a digest of itself and of the row before it.

The first row's digest goes on from the lake's id. So a row that was changed or removed is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from storage.lake.epochs import PLANNED
from storage.schemas import EPOCHS

_DIGEST_CHARACTERS = 32  # 128 bits: found by accident never, and nobody signs with it
_RowT = TypeVar("_RowT", bound=Mapping[str, Any])


def with_digest(row: pa.Table, before: str) -> tuple[pa.Table, str]:
    """Returns the row with its digest, and that digest.

    Input: the digest of the row before it; of the first row the lake's id.
    """
    digest = digest_of(row.to_pylist()[0], before)
    index = EPOCHS.get_field_index("digest")

    return row.set_column(index, EPOCHS.field(index), pa.array([digest])), digest


def digest_of(row: Mapping[str, Any], before: str) -> str:
    """Returns the digest of a row and, by the digest before it, of all rows before it."""
    content = {name: value for name, value in row.items() if name != "digest"}
    text = json.dumps([before, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def chain_order(rows: Iterable[_RowT]) -> list[_RowT]:
    """Returns rows of `epochs` in the order in which they were written."""
    return sorted(rows, key=lambda row: (row["epoch"], row["state"] != PLANNED))
