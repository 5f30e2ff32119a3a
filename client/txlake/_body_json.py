"""Bodies of JSON, by a JSON Schema: its properties are the columns.

Types, `format` of dates and instants, `required`, and `$ref` within the file count. Other words of
JSON Schema (`enum`, `minimum`, `pattern`) are no types, and are not checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from txlake._body_columns import (
    INSTANT,
    JSON_TEXT,
    Field,
    Kind,
    MisfitError,
    Names,
    date_of,
    expected,
    instant_of,
    list_of,
    map_of,
    struct_of,
)
from txlake._consumer_extra import pa
from txlake.errors import SchemaError

_LONG_MAX: Final = 2**63 - 1


class JsonDecoder:
    """A reader of JSON bodies. Errors: SchemaError."""

    def __init__(self, content: bytes) -> None:
        try:
            root = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"not JSON: {error}") from error

        if not isinstance(root, Mapping) or not isinstance(root.get("properties"), Mapping):
            raise SchemaError("not a JSON Schema of an object: it has no `properties`")
        self.fields = _fields(root, root, frozenset())

    def decode(self, body: bytes) -> Mapping[str, Any]:
        """Returns a body's fields. Errors: MisfitError."""
        try:
            value = json.loads(body.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise MisfitError(f"not JSON: {error}") from None

        if not isinstance(value, dict):
            raise expected("an object", value)
        return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any], above: Names) -> list[Field]:
    required = schema.get("required", [])
    if not isinstance(required, list):
        raise SchemaError(f"required = {required!r}: a list of names is allowed")

    properties = schema["properties"]
    if not isinstance(properties, Mapping):
        raise SchemaError(f"properties = {properties!r}: an object is allowed")
    if "" in properties:
        raise SchemaError("a property has an empty name: no column can have it")

    return [
        Field(name, _kind(name, property_, root, above), name in required)
        for name, property_ in properties.items()
    ]


def _kind(name: str, schema: Any, root: Mapping[str, Any], above: Names) -> Kind:
    """Returns the kind of a property; one that SQL has no type for is JSON text."""
    schema, followed = _resolved(name, schema, root)
    if followed & above:
        return JSON_TEXT
    above |= followed

    types = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(types, list):
        others = [name for name in types if name != "null"]
        types = others[0] if len(others) == 1 else None
    if types is not None and types not in _TYPES:
        raise SchemaError(
            f"{name}: type = {types!r}: string, integer, number, boolean, array or object is "
            "allowed"
        )

    if types == "string":
        format_ = schema.get("format", "")
        if not isinstance(format_, str):
            raise SchemaError(f"{name}: format = {format_!r}: a text is allowed")
        return _OF_FORMAT.get(format_, _STRING)
    if types in _SCALARS:
        return _SCALARS[types]
    if types == "array" and "items" in schema:
        return list_of(_kind(name, schema["items"], root, above))
    if types == "object" and schema.get("properties"):
        return struct_of(_fields(schema, root, above))
    if types == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return map_of(_kind(name, schema["additionalProperties"], root, above))
    return JSON_TEXT


def _resolved(
    name: str, schema: Any, root: Mapping[str, Any]
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Returns a schema in the place of its references, and these; of `T or null` it is T's."""
    followed: set[str] = set()

    while True:
        if schema is True:
            return {}, frozenset(followed)
        if not isinstance(schema, Mapping):
            raise SchemaError(f"{name}: {schema!r} is no schema")

        alternatives = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(alternatives, list):
            others = [part for part in alternatives if part != {"type": "null"}]
            if len(others) != 1:
                return {}, frozenset(followed)
            schema = others[0]
        elif "$ref" in schema:
            reference = schema["$ref"]
            schema = _referenced(name, reference, root)
            if reference in followed:
                raise SchemaError(f"{name}: $ref = {reference!r} is a reference to itself")
            followed.add(reference)
        else:
            return schema, frozenset(followed)


def _referenced(name: str, reference: Any, root: Mapping[str, Any]) -> Any:
    part: Any = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise SchemaError(f"{name}: $ref = {reference!r}: only '#/...', in this file, is allowed")

    for name_of_part in reference.removeprefix("#").split("/")[1:]:
        key = name_of_part.replace("~1", "/").replace("~0", "~")
        if not isinstance(part, Mapping) or key not in part:
            raise SchemaError(f"{name}: $ref = {reference!r}: the file has no such part")
        part = part[key]
    return part


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise expected("text", value)
    return value


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of numbers: 1.0 is whole
    if isinstance(value, bool) or not isinstance(value, int):
        raise expected("a whole number", value)
    if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise expected("a whole number of 64 bits", value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected("a number", value)
    number = float(value)
    if math.isinf(number):
        raise expected("a number of 64 bits", value)
    return number


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise expected("true or false", value)
    return value


_STRING: Final = Kind(pa.string(), _text)
_OF_FORMAT: Final = {
    "date-time": Kind(INSTANT, instant_of),
    "date": Kind(pa.date32(), date_of),
}
_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
_SCALARS: Final = {
    "integer": Kind(pa.int64(), _whole),
    "number": Kind(pa.float64(), _number),
    "boolean": Kind(pa.bool_(), _flag),
}
