"""Which messages of a topic a consumer wants, by columns that are read without the bodies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

ALL_TAGS = "*"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Tags and keys of messages that are wanted; None: all of them.

    A message's `keys` match if one of them, of several between blanks, is wanted.
    """

    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    @property
    def columns(self) -> list[str]:
        """Returns the columns that decide."""
        wanted = (("tags", self.tags), ("keys", self.keys))
        return [name for name, values in wanted if values is not None]

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Returns which rows are wanted."""
        mask = None

        if self.tags is not None:
            mask = pc.is_in(rows["tags"], pa.array(self.tags, pa.string()))
        if self.keys is not None:
            is_wanted = self._has_key(rows["keys"])
            mask = is_wanted if mask is None else pc.and_(mask, is_wanted)

        return mask

    def _has_key(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        keys = frozenset(self.keys or ())
        is_wanted = [
            text is not None and (text in keys or not keys.isdisjoint(text.split(" ")))
            for text in column.to_pylist()
        ]
        return pa.chunked_array([pa.array(is_wanted, pa.bool_())])


def parse_tags(expression: str) -> tuple[str, ...] | None:
    """Returns the tags of an expression, `TagA || TagB`; None: `*`, all messages.

    Errors: ValueError for an expression with an empty tag, or what is none.
    """
    if not isinstance(expression, str):
        raise ValueError(f"tags {expression!r}: text, tags with || between them, or *")
    if expression.strip() == ALL_TAGS:
        return None

    tags = tuple(tag.strip() for tag in expression.split("||"))
    if not all(tags):
        raise ValueError(f"tags {expression!r}: tags with || between them, or *")
    return tags


def make_filter(expression: str | None, keys: Collection[str] | None) -> MessageFilter | None:
    """Returns the filter of a topic; None if it lets all through."""
    tags = None if expression is None else parse_tags(expression)
    if tags is None and keys is None:
        return None
    return MessageFilter(tags, None if keys is None else tuple(keys))
