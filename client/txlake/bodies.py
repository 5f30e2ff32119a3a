"""Bodies as columns: JSON, Avro or Protobuf read by a schema, beside the bytes that were sent.

    schema = read_schema("json", "orders.schema.json")
    table = schema.with_columns(table)

The table gets a column for each field of the schema, and `body_error`. What does not fit is null,
and `body_error` says why; nothing raises. The bytes are only read.
Source: docs/readers.md "Bodies as columns".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from txlake._body_columns import Field, MisfitError
from txlake._consumer_extra import pa
from txlake._topic_reader import COLUMNS
from txlake.errors import SchemaError

JSON: Final = "json"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
FORMATS: Final = (JSON, AVRO, PROTOBUF)

BODY_ERROR: Final = "body_error"
_ERROR_CHARACTERS_MAX: Final = 200
# A field with the name of a column of messages, or of what `messages` adds, gets this before it.
_PREFIX: Final = "body_"
_TAKEN: Final = frozenset((*COLUMNS, "topic", BODY_ERROR))


class Decoder(Protocol):
    """A format's reader of bodies."""

    @property
    def fields(self) -> Sequence[Field]:
        """Returns the fields that become columns."""

    def decode(self, body: bytes) -> Mapping[str, Any]:
        """Returns a body's fields by name, not yet converted. Errors: MisfitError."""


class BodySchema:
    """The columns that bodies of one topic have; `read_schema` makes it.

    `columns`: the typed columns and `body_error`, as an Arrow schema. It can be sent to other
    processes: it is made again there.
    Errors: SchemaError, in one sentence, for a schema that cannot be columns.
    """

    def __init__(
        self, kind: str, content: bytes, message: str = "", skip_bytes: int = 0, name: str = ""
    ) -> None:
        self._made_of = (kind, content, message, skip_bytes, name)
        self._skip_bytes = skip_bytes
        try:
            self._decoder = _decoder(kind, content, message)
            self._names = _column_names([field.name for field in self._decoder.fields])
            self.columns = _columns(self._names, self._decoder.fields)
        except SchemaError as error:
            raise SchemaError(f"{name or kind}: {error}") from error
        except ImportError:
            raise
        except Exception as error:  # as many kinds as schemas can be wrong
            reason = str(error).partition("\n")[0]
            raise SchemaError(
                f"{name or kind}: no columns can be made of it: {type(error).__name__} {reason}"
            ) from error

    def __reduce__(self) -> tuple[type[BodySchema], tuple[str, bytes, str, int, str]]:
        return BodySchema, self._made_of

    def decode(self, bodies: pa.Array | pa.ChunkedArray) -> pa.StructArray:
        """Returns bodies as one struct each: the typed columns, and `body_error`.

        A null body has nulls, and no error.
        """
        values: list[list[Any]] = [[] for _ in self._decoder.fields]
        errors: list[str | None] = []

        for body in bodies.to_pylist():
            error = self._add_row(body, values)
            errors.append(error and error[:_ERROR_CHARACTERS_MAX])

        arrays = [
            _array(field, column, errors)
            for field, column in zip(self._decoder.fields, values, strict=True)
        ]
        arrays.append(pa.array(errors, pa.string()))
        return pa.StructArray.from_arrays(arrays, fields=list(self.columns))

    def with_columns(self, table: pa.Table, body: str = "body") -> pa.Table:
        """Returns a table with the typed columns of its bodies behind its own columns."""
        decoded = self.decode(table[body])
        for number, field in enumerate(self.columns):
            table = table.append_column(field, decoded.field(number))
        return table

    def _add_row(self, body: bytes | None, values: list[list[Any]]) -> str | None:
        """Adds a body's fields to the columns. Output: why some of it does not fit, or None."""
        fields: Mapping[str, Any] = {}
        error = None

        if body is not None:
            try:
                fields = self._decoder.decode(body[self._skip_bytes :])
            except MisfitError as misfit:
                error = str(misfit)
                body = None

        for field, column in zip(self._decoder.fields, values, strict=True):
            value = None
            if body is not None:
                try:
                    value = field.read(fields)
                except MisfitError as misfit:
                    error = error or str(misfit)
            column.append(value)

        return error


def read_schema(
    kind: str,
    path: str | os.PathLike[str],
    *,
    message: str = "",
    skip_bytes: int = 0,
) -> BodySchema:
    """Returns the schema in a file: a JSON Schema, an Avro schema, or a Protobuf descriptor set.

    Input: `kind`: json, avro or protobuf; `message`: the Protobuf message's full name;
    `skip_bytes`: what stands before the record in each body, 5 of Confluent's Avro.
    Errors: SchemaError, in one sentence, for a file that is not there or is wrong; ImportError for
    a library that is missing.
    """
    if kind not in FORMATS:
        raise SchemaError(f"{kind!r}: {', '.join(FORMATS)} are allowed")
    if type(skip_bytes) is not int or skip_bytes < 0:
        raise SchemaError(f"skip_bytes {skip_bytes!r}: 0 or more")

    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise SchemaError(f"{os.fspath(path)}: cannot be read ({error.strerror})") from error
    return BodySchema(kind, content, message, skip_bytes, os.fspath(path))


def _decoder(kind: str, content: bytes, message: str) -> Decoder:
    """Returns the reader of a format. Errors: SchemaError; ImportError without its library."""
    if (kind == PROTOBUF) != bool(message):
        raise SchemaError(
            "protobuf needs the name of the message, shop.Order say"
            if kind == PROTOBUF
            else f"message = {message!r}: only protobuf has messages"
        )

    try:
        if kind == AVRO:
            from txlake._body_avro import AvroDecoder

            return AvroDecoder(content)
        if kind == PROTOBUF:
            from txlake._body_protobuf import ProtobufDecoder

            return ProtobufDecoder(content, message)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"bodies of format {kind} need {(error.name or '').partition('.')[0]}: install txlake "
            f"with its extra, txlake[{kind}]; in a clone: pip install './client[{kind}]'"
        ) from error

    from txlake._body_json import JsonDecoder

    return JsonDecoder(content)


def _column_names(names: Iterable[str]) -> list[str]:
    """Returns the columns of fields. Errors: SchemaError for names that differ by case alone."""
    columns = [f"{_PREFIX}{name}" if name.lower() in _TAKEN else name for name in names]
    if not columns:
        raise SchemaError("it has no fields: no columns")

    seen: dict[str, str] = {}
    for name in columns:
        other = seen.setdefault(name.lower(), name)
        if other is not name or name.lower() in _TAKEN:
            raise SchemaError(f"fields {other!r} and {name!r}: SQL knows no case, they are one")
    return columns


def _columns(names: Sequence[str], fields: Sequence[Field]) -> pa.Schema:
    typed = (pa.field(name, field.type) for name, field in zip(names, fields, strict=True))
    return pa.schema([*typed, (BODY_ERROR, pa.string())])


def _array(field: Field, column: list[Any], errors: list[str | None]) -> pa.Array:
    """Returns a column's values; one that Arrow cannot hold is null, with its reason."""
    try:
        return pa.array(column, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass

    for row, value in enumerate(column):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            column[row] = None
            reason = str(error).partition("\n")[0]
            errors[row] = errors[row] or f"{field.name}: {reason}"[:_ERROR_CHARACTERS_MAX]
    return pa.array(column, field.type)
