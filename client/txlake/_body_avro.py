"""Bodies of Avro: one record each, without a file's header, by the schema that wrote it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

from txlake._body_columns import (
    INSTANT,
    JSON_TEXT,
    LOCAL_INSTANT,
    Field,
    Kind,
    MisfitError,
    Names,
    list_of,
    map_of,
    same,
    struct_of,
)
from txlake._consumer_extra import pa
from txlake._counted import counted
from txlake.errors import SchemaError

_DECIMAL_DIGITS_MAX: Final = 38

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "null": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): Kind(pa.date32(), same),
    ("int", "time-millis"): Kind(pa.string(), str),
    ("long", "time-micros"): Kind(pa.string(), str),
    ("long", "timestamp-millis"): Kind(INSTANT, same),
    ("long", "timestamp-micros"): Kind(INSTANT, same),
    ("long", "local-timestamp-millis"): Kind(LOCAL_INSTANT, same),
    ("long", "local-timestamp-micros"): Kind(LOCAL_INSTANT, same),
    ("string", "uuid"): Kind(pa.string(), str),
}


class AvroDecoder:
    """A reader of Avro bodies. Errors: SchemaError."""

    def __init__(self, content: bytes) -> None:
        try:
            source = json.loads(content)
            self._schema = fastavro.parse_schema(source)
        except (SchemaParseException, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SchemaError(f"not an Avro schema: {type(error).__name__} {error}") from error

        if not isinstance(source, Mapping) or source.get("type") != "record":
            raise SchemaError("not the Avro schema of a record")

        named: dict[str, Any] = {}
        self.fields = _fields(source, named, "", frozenset())

    def decode(self, body: bytes) -> Mapping[str, Any]:
        """Returns a body's fields. Errors: MisfitError."""
        stream = io.BytesIO(body)
        try:
            record: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # as many kinds as bodies can be wrong
            raise MisfitError(f"not Avro of this schema: {type(error).__name__} {error}") from None

        remaining = len(body) - stream.tell()
        if remaining:
            bytes_left = counted(remaining, "byte")
            raise MisfitError(f"not Avro of this schema: {bytes_left} left behind the record")
        return record  # type: ignore[no-any-return]


def _fields(
    record: Mapping[str, Any], named: dict[str, Any], namespace: str, above: Names
) -> list[Field]:
    namespace, full = _remember(record, named, namespace)
    above |= {full}
    return [
        Field(field["name"], _kind(field["type"], named, namespace, above))
        for field in record.get("fields", ())
    ]


def _remember(schema: Mapping[str, Any], named: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Notes a named type. Output: the namespace of what stands in it, and its full name."""
    name = schema.get("name", "")
    space, _, short = name.rpartition(".")
    namespace = space or schema.get("namespace", namespace)

    full = f"{namespace}.{short}" if namespace else short
    named[full] = schema
    return namespace, full


def _kind(schema: Any, named: dict[str, Any], namespace: str, above: Names) -> Kind:
    """Returns the kind of a field; one that SQL has no type for is JSON text."""
    if isinstance(schema, list):
        others = [kind for kind in schema if kind != "null"]
        return _kind(others[0], named, namespace, above) if len(others) == 1 else JSON_TEXT

    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return Kind(_PRIMITIVES[schema], same)
        full = f"{namespace}.{schema}" if f"{namespace}.{schema}" in named else schema
        return JSON_TEXT if full in above else _kind(named[full], named, namespace, above)

    kind = schema["type"]
    if isinstance(kind, list | dict):
        return _kind(kind, named, namespace, above)
    if kind == "record":
        return struct_of(_fields(schema, named, namespace, above))
    if kind == "array":
        return list_of(_kind(schema["items"], named, namespace, above))
    if kind == "map":
        return map_of(_kind(schema["values"], named, namespace, above))

    if kind in ("enum", "fixed"):
        _remember(schema, named, namespace)
    logical = schema.get("logicalType")
    if not isinstance(logical, str | None):
        raise SchemaError(f"logicalType = {logical!r}: a text is allowed")
    if logical == "decimal":
        return _decimal(schema.get("precision"), schema.get("scale", 0))
    return _LOGICAL.get((kind, logical or ""), Kind(_PRIMITIVES.get(kind, pa.string()), same))


def _decimal(precision: Any, scale: Any) -> Kind:
    """Returns the kind of a decimal; one with more digits than SQL has is text."""
    if type(precision) is not int or precision < 1:
        raise SchemaError(f"precision = {precision!r} of a decimal: 1 or more is allowed")
    if type(scale) is not int or not 0 <= scale <= precision:
        raise SchemaError(f"scale = {scale!r} of a decimal: 0 to its precision is allowed")

    if precision > _DECIMAL_DIGITS_MAX:
        return Kind(pa.string(), str)
    return Kind(pa.decimal128(precision, scale), same)
