"""Bodies of Protobuf, by a descriptor set: what `protoc --descriptor_set_out` writes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from txlake._body_columns import INSTANT, Field, Kind, MisfitError, Names, list_of, same, struct_of
from txlake._consumer_extra import pa
from txlake.errors import SchemaError

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

_SCALARS: Final = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
}


class ProtobufDecoder:
    """A reader of Protobuf bodies. Errors: SchemaError."""

    def __init__(self, content: bytes, message: str) -> None:
        files = descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(content)
        except DecodeError as error:
            raise SchemaError(
                "not a descriptor set: `protoc --include_imports --descriptor_set_out=FILE` "
                f"writes one ({error})"
            ) from error

        pool = descriptor_pool.DescriptorPool()
        try:
            for file in files.file:
                pool.Add(file)
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"its files cannot be used; protoc has --include_imports ({error})"
            ) from error

        try:
            descriptor = pool.FindMessageTypeByName(message)
        except KeyError as error:
            names = [
                f"{file.package}.{type_.name}".strip(".")
                for file in files.file
                for type_ in file.message_type
            ]
            raise SchemaError(
                f"it has no message {message!r}; there is: {', '.join(names) or 'none'}"
            ) from error

        self._message = message_factory.GetMessageClass(descriptor)
        self.fields = _fields(descriptor, frozenset())

    def decode(self, body: bytes) -> Mapping[str, Any]:
        """Returns a body's fields. Errors: MisfitError."""
        message = self._message()
        try:
            message.ParseFromString(body)
        except (DecodeError, RecursionError) as error:
            raise MisfitError(f"not Protobuf: {error}") from None
        return _values(message)


def _values(message: Any) -> Mapping[str, Any]:
    """Returns the fields of a message that are there: one without presence always is."""
    return {
        field.name: getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _fields(descriptor: Descriptor, above: Names) -> list[Field]:
    above |= {descriptor.full_name}
    return [Field(field.name, _kind(field, above)) for field in descriptor.fields]


def _kind(field: FieldDescriptor, above: Names) -> Kind:
    """Returns the kind of a field; a message in itself is JSON text."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _single(field.message_type.fields_by_name["value"], above)

        def pairs(values: Any) -> list[tuple[str, Any]]:
            return [(str(name), value.convert(values[name])) for name in values]

        return Kind(pa.map_(pa.string(), value.type), pairs)

    kind = _single(field, above)
    if not field.is_repeated:
        return kind
    items = list_of(kind)
    return Kind(items.type, lambda values: items.convert(list(values)))


def _single(field: FieldDescriptor, above: Names) -> Kind:
    if field.cpp_type in _SCALARS:
        return Kind(_SCALARS[field.cpp_type], same)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        return Kind(pa.binary() if is_bytes else pa.string(), same)

    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = field.enum_type.values_by_number
        return Kind(pa.string(), lambda value: names[value].name if value in names else str(value))

    message = field.message_type
    if message.full_name == _TIMESTAMP:
        return Kind(INSTANT, _instant)
    if message.full_name in above or not message.fields:
        return Kind(pa.string(), _json)

    record = struct_of(_fields(message, above))
    return Kind(record.type, lambda value: record.convert(_values(value)))


def _json(value: Any) -> str:
    """Returns a message as JSON text. Errors: MisfitError for a value that JSON cannot have."""
    try:
        return str(json_format.MessageToJson(value, indent=None))
    except (json_format.Error, DecodeError) as error:  # neither is a ValueError
        raise MisfitError(f"no JSON: {error}") from None


def _instant(value: Any) -> dt.datetime:
    try:
        return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    except OverflowError:
        raise MisfitError(f"an instant is expected, not {value.seconds} s") from None
