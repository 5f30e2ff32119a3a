"""The columns that fields of a body become: their types, and how a value is read."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from txlake._consumer_extra import pa

Convert = Callable[[Any], Any]
Names = frozenset[str]  # of the records around a field: one that is in itself is JSON text

INSTANT: Final = pa.timestamp("us", tz="UTC")
LOCAL_INSTANT: Final = pa.timestamp("us")
_SHOWN_CHARACTERS_MAX: Final = 40
_FRACTION = re.compile(r"(\.\d{1,6})\d*")


class MisfitError(ValueError):
    """A body, or a part of it, that does not fit its schema. The text says which and why."""


@dataclass(frozen=True)
class Kind:
    """A column's type, and the function that converts a value for it."""

    type: pa.DataType
    convert: Convert


@dataclass(frozen=True)
class Field:
    """A field of the body that becomes a column."""

    name: str
    kind: Kind
    is_required: bool = False

    @property
    def type(self) -> pa.DataType:
        """Returns the column's type."""
        return self.kind.type

    def read(self, fields: Mapping[str, Any]) -> Any:
        """Returns the column's value in a row of fields. Errors: MisfitError."""
        value = fields.get(self.name)

        if value is None:
            if self.is_required and self.name not in fields:
                raise MisfitError(f"{self.name}: it is missing")
            return None

        try:
            return self.kind.convert(value)
        except MisfitError as misfit:
            raise MisfitError(f"{self.name}: {misfit}") from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise MisfitError(f"{self.name}: {error}") from None


def same(value: Any) -> Any:
    """Returns a value that needs no conversion."""
    return value


def expected(words: str, value: Any) -> MisfitError:
    """Returns the misfit of a value of another kind than the schema has."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}..."
    return MisfitError(f"{words} is expected, not {shown}")


def list_of(item: Kind) -> Kind:
    """Returns the kind of a list."""

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise expected("a list", value)
        return [None if each is None else item.convert(each) for each in value]

    return Kind(pa.list_(item.type), convert)


def map_of(item: Kind) -> Kind:
    """Returns the kind of a map from text."""

    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, Mapping):
            raise expected("an object", value)
        return [
            (str(name), None if each is None else item.convert(each))
            for name, each in value.items()
        ]

    return Kind(pa.map_(pa.string(), item.type), convert)


def struct_of(fields: list[Field]) -> Kind:
    """Returns the kind of a record in a record."""

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise expected("an object", value)
        return {field.name: field.read(value) for field in fields}

    return Kind(pa.struct([pa.field(field.name, field.type) for field in fields]), convert)


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain, sort_keys=True)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


# What has no type of its own in a table: any JSON, a union of several kinds, a record in itself.
JSON_TEXT: Final = Kind(pa.string(), _json_text)


def instant_of(value: Any) -> dt.datetime:
    """Returns the instant in a text with a time zone. Errors: MisfitError."""
    if not isinstance(value, str):
        raise expected("an instant as text", value)

    text = _FRACTION.sub(lambda match: match[1].ljust(7, "0"), value.strip(), count=1)
    text = re.sub("[zZ]$", "+00:00", text)
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError:
        raise expected("an instant like '2026-01-31T08:00:00Z'", value) from None

    if instant.tzinfo is None:
        raise expected("an instant with its time zone", value)
    return instant.astimezone(dt.timezone.utc)


def date_of(value: Any) -> dt.date:
    """Returns the day in a text. Errors: MisfitError."""
    try:
        return dt.date.fromisoformat(value)
    except (ValueError, TypeError):
        raise expected("a day like '2026-01-31'", value) from None
