"""Bodies as columns: what fits has its type, what does not is null with its reason."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)
from google.protobuf.message import Message

from txlake import BodySchema, SchemaError, read_schema
from txlake.bodies import AVRO, BODY_ERROR, JSON, PROTOBUF

UTC = dt.timezone.utc
AT = dt.datetime(2026, 1, 31, 8, 0, 0, 250_000, tzinfo=UTC)

JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["order_id"],
    "properties": {
        "order_id": {"type": "string"},
        "amount": {"type": ["number", "null"]},
        "count": {"type": "integer"},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "anything": {},
        "keys": {"type": "string"},
    },
    "$defs": {
        "line": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "more": {"$ref": "#/$defs/line"}},
        }
    },
}
JSON_COLUMNS = {
    "order_id": pa.string(),
    "amount": pa.float64(),
    "count": pa.int64(),
    "paid": pa.bool_(),
    "at": pa.timestamp("us", tz="UTC"),
    "day": pa.date32(),
    "lines": pa.list_(pa.struct([("item", pa.string()), ("more", pa.string())])),
    "labels": pa.map_(pa.string(), pa.string()),
    "anything": pa.string(),
    "body_keys": pa.string(),
    BODY_ERROR: pa.string(),
}


def json_schema(**properties: Any) -> BodySchema:
    content = {"type": "object", "properties": properties} if properties else JSON_SCHEMA
    return BodySchema(JSON, json.dumps(content).encode())


def rows_of(schema: BodySchema, *bodies: bytes | None) -> list[dict[str, Any]]:
    """Returns what is not null of each body."""
    rows = schema.decode(pa.array(bodies, pa.binary())).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_a_json_schema_is_columns() -> None:
    columns = json_schema().columns
    assert {field.name: field.type for field in columns} == JSON_COLUMNS


def test_a_json_body_that_fits_has_all_its_columns() -> None:
    body = {
        "order_id": "o-1",
        "amount": 3,
        "count": 2.0,
        "paid": True,
        "at": "2026-01-31T09:00:00.2500009+01:00",
        "day": "2026-01-31",
        "lines": [{"item": "tea", "more": {"item": "cup"}}, {}],
        "labels": {"a": "b"},
        "anything": [1, {"ä": None}],
        "keys": "k",
        "unknown": "is left out",
    }
    (row,) = rows_of(json_schema(), json.dumps(body).encode())

    assert row == {
        "order_id": "o-1",
        "amount": 3.0,
        "count": 2,
        "paid": True,
        "at": AT,
        "day": dt.date(2026, 1, 31),
        "lines": [{"item": "tea", "more": '{"item": "cup"}'}, {"item": None, "more": None}],
        "labels": [("a", "b")],
        "anything": '[1, {"ä": null}]',
        "body_keys": "k",
    }


@pytest.mark.parametrize(
    ("body", "fits", "why"),
    [
        (b"x", {}, "not JSON: "),
        (b"", {}, "not JSON: "),
        (b"\xff", {}, "not JSON: 'utf-8' codec"),
        (b"[1]", {}, "an object is expected, not [1]"),
        (b'{"order_id": NaN}', {}, "not JSON: NaN is no JSON"),
        (b"[" * 100_000, {}, "not JSON: "),
        (b"{}", {}, "order_id: it is missing"),
        (b'{"order_id": 7, "count": 1}', {"count": 1}, "order_id: text is expected, not 7"),
        (b'{"order_id": "a", "count": "1"}', {"order_id": "a"}, "count: a whole number is expec"),
        (b'{"order_id": "a", "count": 1.5}', {"order_id": "a"}, "count: a whole number is expec"),
        (b'{"order_id": "a", "count": true}', {"order_id": "a"}, "count: a whole number is exp"),
        (b'{"order_id": "a", "count": 9223372036854775808}', {"order_id": "a"},
         "count: a whole number of 64 bits is expected"),
        (b'{"order_id": "a", "amount": 1e999}', {"order_id": "a"}, "amount: a number of 64 bits"),
        (b'{"order_id": "a", "amount": ' + b"9" * 400 + b"}", {"order_id": "a"}, "amount: "),
        (b'{"order_id": "a", "paid": 1}', {"order_id": "a"}, "paid: true or false is expected"),
        (b'{"order_id": "a", "at": "2026-01-31"}', {"order_id": "a"}, "at: an instant with its"),
        (b'{"order_id": "a", "at": "soon"}', {"order_id": "a"}, "at: an instant like"),
        (b'{"order_id": "a", "at": "0001-01-01T00:00:00+10:00"}', {"order_id": "a"}, "at: "),
        (b'{"order_id": "a", "day": "31.1."}', {"order_id": "a"}, "day: a day like"),
        (b'{"order_id": "a", "lines": [{"item": 1}]}', {"order_id": "a"}, "lines: item: text"),
        (b'{"order_id": "a", "lines": {}}', {"order_id": "a"}, "lines: a list is expected"),
        (b'{"order_id": "a", "labels": {"b": 1}}', {"order_id": "a"}, "labels: text is expected"),
        (b'{"order_id": "\\ud800", "count": 1}', {"count": 1}, "order_id: 'utf-8' codec"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_null_with_its_reason(
    body: bytes, fits: dict[str, Any], why: str
) -> None:
    good = b'{"order_id": "o-1"}'
    before, row, after = rows_of(json_schema(), good, body, good)

    assert row.pop(BODY_ERROR).startswith(why)
    assert row == fits
    assert before == after == {"order_id": "o-1"}


def test_a_null_body_has_nulls_and_no_error() -> None:
    assert rows_of(json_schema(), None) == [{}]


def test_columns_stand_behind_those_of_the_table() -> None:
    table = pa.table({"queue_id": [0, 1], "body": pa.array([b'{"n": 1}', b"?"], pa.binary())})
    typed = json_schema(n={"type": "integer"}).with_columns(table)

    assert typed.column_names == ["queue_id", "body", "n", BODY_ERROR]
    assert typed["n"].to_pylist() == [1, None]
    assert typed["body"].to_pylist() == [b'{"n": 1}', b"?"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "orders.json: not JSON"),
        (b"[]", "orders.json: not a JSON Schema of an object"),
        (b'{"type": "string"}', "not a JSON Schema of an object"),
        (b'{"properties": {}}', "it has no fields"),
        (b'{"properties": {"a": 1}}', "a: 1 is no schema"),
        (b'{"properties": {"a": {"type": "text"}}}', "a: type = 'text': string, integer"),
        (b'{"properties": {"a": {"$ref": "b.json"}}}', "only '#/...', in this file"),
        (b'{"properties": {"a": {"$ref": "#/$defs/b"}}}', "the file has no such part"),
        (b'{"properties": {"a": {"$ref": "#/properties/a"}}}', "is a reference to itself"),
        (b'{"properties": {"id": {}, "ID": {}}}', "fields 'id' and 'ID': SQL knows no case"),
        (b'{"properties": {"keys": {}, "body_keys": {}}}', "fields 'body_keys' and 'body_keys'"),
        (b'{"required": 1, "properties": {"a": {}}}', "required = 1"),
        (b'{"properties": {"a": {"type": {"x": 1}}}}', "a: type = {'x': 1}: string, integer"),
        (b'{"properties": {"a": {"type": ["null", {"x": 1}]}}}', "a: type = {'x': 1}: string, in"),
        (b'{"properties": {"a": {"type": "string", "format": ["x"]}}}', "a: format = ['x']: a tex"),
        (b'{"properties": {"a": {"$ref": ["x"]}}}', "a: $ref = ['x']: only '#/...'"),
        (
            b'{"properties": {"a": {"type": "object", "properties": 5}}}',
            "properties = 5: an object",
        ),
        (b'{"properties": {"a": {"properties": {"": {}}}}}', "a property has an empty name"),
        (b'{"properties": {"": {}}}', "a property has an empty name: no column"),
        (b'{"properties": {"\\ud800": {}}}', "no columns can be made of it: UnicodeEncodeError"),
        (b'{"properties": {"a": ' + b'{"type": "array", "items": ' * 5000, "not JSON"),
    ],
)
def test_a_wrong_json_schema_is_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "orders.json").write_bytes(content)
    with pytest.raises(SchemaError) as refused:
        read_schema(JSON, tmp_path / "orders.json")
    assert str(refused.value).startswith(f"{tmp_path}/orders.json: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_and_wrong_options_are_refused(tmp_path: Path) -> None:
    for kind, options, said in (
        (JSON, {}, "gone.json: cannot be read (No such file or directory)"),
        ("xml", {}, "'xml': json, avro, protobuf are allowed"),
        (JSON, {"skip_bytes": -1}, "skip_bytes -1: 0 or more"),
    ):
        with pytest.raises(SchemaError) as refused:
            read_schema(kind, tmp_path / "gone.json", **options)  # type: ignore[arg-type]
        assert said in str(refused.value)

    (tmp_path / "orders.json").write_text(json.dumps(JSON_SCHEMA), "utf-8")
    with pytest.raises(SchemaError, match=r"message = 'shop.Order': only protobuf has messages"):
        read_schema(JSON, tmp_path / "orders.json", message="shop.Order")


AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "count", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["TEA", "CUP"]}},
        {"name": "also", "type": "Kind"},
        {"name": "either", "type": ["string", "int"]},
        {
            "name": "node",
            "type": {
                "type": "record",
                "name": "Node",
                "fields": [
                    {"name": "name", "type": "string"},
                    {"name": "below", "type": {"type": "array", "items": "Node"}},
                ],
            },
        },
        {"name": "labels", "type": {"type": "map", "values": "double"}},
    ],
}
AVRO_RECORD: dict[str, Any] = {
    "order_id": "o-1",
    "count": None,
    "at": AT,
    "price": Decimal("3.50"),
    "kind": "TEA",
    "also": "CUP",
    "either": 7,
    "node": {"name": "a", "below": [{"name": "b", "below": []}]},
    "labels": {"x": 0.5},
}


def avro_body(prefix: bytes = b"") -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO_SCHEMA), AVRO_RECORD)
    return prefix + stream.getvalue()


@pytest.mark.parametrize("prefix", [b"", b"\0\0\0\0\7"])
def test_an_avro_body_has_typed_columns(prefix: bytes) -> None:
    schema = BodySchema(AVRO, json.dumps(AVRO_SCHEMA).encode(), skip_bytes=len(prefix))
    assert schema.columns.field("price").type == pa.decimal128(9, 2)

    row, cut, longer, empty, null = rows_of(
        schema, avro_body(prefix), avro_body(prefix)[:-3], avro_body(prefix) + b"x", prefix, None
    )
    assert row == {
        **{name: value for name, value in AVRO_RECORD.items() if value is not None},
        "either": "7",
        "node": {"name": "a", "below": ['{"below": [], "name": "b"}']},
        "labels": [("x", 0.5)],
    }
    assert [*cut] == [*empty] == [BODY_ERROR]
    assert longer == {BODY_ERROR: "not Avro of this schema: 1 byte left behind the record"}
    assert null == {}


def avro_of(kind: Any) -> bytes:
    """Returns the schema of a record with one field."""
    record = {"type": "record", "name": "a", "fields": [{"name": "b", "type": kind}]}
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not an Avro schema: "),
        (b'{"type": "record", "name": "a"}', "it has no fields"),
        (b'"string"', "not the Avro schema of a record"),
        (b'{"type": "record", "name": "a", "fields": [{"name": "b", "type": "c"}]}',
         "not an Avro schema: "),
        (avro_of({"type": "bytes", "logicalType": "decimal"}), "precision = None of a decimal: 1"),
        (avro_of({"type": "bytes", "logicalType": "decimal", "precision": 0}), "precision = 0 of"),
        (avro_of({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}),
         "not an Avro schema: SchemaParseException decimal scale"),
        (avro_of({"type": "long", "logicalType": ["x"]}), "logicalType = ['x']: a text is allow"),
    ],
)  # fmt: skip
def test_a_wrong_avro_schema_is_one_sentence(content: bytes, said: str) -> None:
    with pytest.raises(SchemaError) as refused:
        BodySchema(AVRO, content, name="orders.avsc")
    assert str(refused.value).startswith(f"orders.avsc: {said}")
    assert "\n" not in str(refused.value)


def descriptor_set() -> bytes:
    """Returns what protoc writes of a file with two messages."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")

    line = file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    line.field.add(
        name="more",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=".shop.Line",
        label=field.LABEL_OPTIONAL,
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="TEA", number=0)
    kind.value.add(name="CUP", number=1)

    order = file.message_type.add(name="Order")
    for number, (name, type_, label, type_name) in enumerate(
        (
            ("order_id", field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
            ("count", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("kind", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Kind"),
            ("lines", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Line"),
            ("first", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".shop.Line"),
            ("labels", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.LabelsEntry"),
            ("data", field.TYPE_BYTES, field.LABEL_OPTIONAL, ""),
        ),
        1,
    ):
        added = order.field.add(name=name, number=number, type=type_, label=label)
        if type_name:
            added.type_name = type_name
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)

    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf_body() -> bytes:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    order: Any = make(order_id="o-1", count=2**64 - 1, kind=1, data=b"\xff")
    order.lines.add(item="tea").more.item = "cup"
    order.labels["a"] = 5
    return bytes(order.SerializeToString())


def test_a_protobuf_body_has_typed_columns() -> None:
    schema = BodySchema(PROTOBUF, descriptor_set(), "shop.Order")
    row, wrong, empty, null = rows_of(schema, protobuf_body(), b"\xff\xff", b"", None)

    assert row == {
        "order_id": "o-1",
        "count": Decimal(2**64 - 1),
        "kind": "CUP",
        "lines": [{"item": "tea", "more": '{"item": "cup"}'}],
        "labels": [("a", 5)],
        "data": b"\xff",
    }
    assert wrong[BODY_ERROR].startswith("not Protobuf: ")
    assert [*wrong] == [BODY_ERROR]
    assert empty["order_id"] == ""
    assert "first" not in empty
    assert null == {}


NODE_FIELDS = {
    "at": timestamp_pb2.Timestamp,
    "detail": any_pb2.Any,
    "labels": struct_pb2.Struct,
    "lasts": duration_pb2.Duration,
    "mask": field_mask_pb2.FieldMask,
}


def node_set() -> descriptor_pb2.FileDescriptorSet:
    """Returns what protoc writes of a message in itself, with fields of Google's own types."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="tree", syntax="proto3")
    files = descriptor_pb2.FileDescriptorSet()
    node = file.message_type.add(name="Node")
    node.field.add(
        name="below", number=1, type=field.TYPE_MESSAGE, type_name=".tree.Node",
        label=field.LABEL_REPEATED,
    )  # fmt: skip

    for number, (name, message) in enumerate(NODE_FIELDS.items(), 2):
        message.DESCRIPTOR.file.CopyToProto(files.file.add())
        file.dependency.append(files.file[-1].name)
        node.field.add(
            name=name, number=number, type=field.TYPE_MESSAGE,
            type_name=f".{message.DESCRIPTOR.full_name}", label=field.LABEL_OPTIONAL,
        )  # fmt: skip

    files.file.append(file)
    return files


def node_body(**values: Message) -> bytes:
    """Returns a node of one node below it, which has these values."""
    pool = descriptor_pool.DescriptorPool()
    for file in node_set().file:
        pool.Add(file)
    node: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("tree.Node"))()
    below = node.below.add()
    for name, value in values.items():
        field = getattr(below, name)
        field.SetInParent()
        field.MergeFromString(value.SerializeToString())
    return bytes(node.SerializeToString())


@pytest.mark.parametrize(
    ("values", "why"),
    [
        pytest.param({"at": timestamp_pb2.Timestamp(seconds=10**12)}, "Timestamp is not valid",
                     id="an instant beyond the year 9999"),
        pytest.param({"lasts": duration_pb2.Duration(seconds=10**15)}, "Duration is not valid",
                     id="a span beyond 10,000 years"),
        pytest.param({"mask": field_mask_pb2.FieldMask(paths=["A"])}, "must not contain uppercase",
                     id="a path that JSON cannot have"),
        pytest.param({"labels": struct_pb2.Struct(fields={
                         "n": struct_pb2.Value(number_value=float("nan"))})}, "NaN",
                     id="a number that JSON cannot have"),
        pytest.param({"detail": any_pb2.Any(type_url="/google.protobuf.Timestamp",
                                            value=b"\xff")}, "Error parsing message",
                     id="a message of another type that is broken"),
        pytest.param({"detail": any_pb2.Any(type_url="/tree.Leaf")}, "type_url: /tree.Leaf",
                     id="a message of a type that is not known"),
    ],
)  # fmt: skip
def test_a_protobuf_message_that_json_cannot_have_is_null_with_its_reason(
    values: dict[str, Message], why: str
) -> None:
    schema = BodySchema(PROTOBUF, node_set().SerializeToString(), "tree.Node")
    good = node_body(at=timestamp_pb2.Timestamp(seconds=0))
    before, row, after = rows_of(schema, good, node_body(**values), good)

    assert [*row] == [BODY_ERROR]
    assert row[BODY_ERROR].startswith("below: ")
    assert why in row[BODY_ERROR]
    assert before == after == {"below": ['{"at": "1970-01-01T00:00:00Z"}']}


@pytest.mark.parametrize(
    ("content", "message", "said"),
    [
        (b"syntax = 'proto3';", "shop.Order", "not a descriptor set: `protoc"),
        (descriptor_set(), "shop.Bill", "it has no message 'shop.Bill'; there is: shop.Line, sho"),
        (descriptor_set(), "", "protobuf needs the name of the message"),
        (b"", "shop.Order", "it has no message 'shop.Order'; there is: none"),
    ],
)
def test_a_wrong_descriptor_set_is_one_sentence(content: bytes, message: str, said: str) -> None:
    with pytest.raises(SchemaError) as refused:
        BodySchema(PROTOBUF, content, message, name="shop.desc")
    assert str(refused.value).startswith(f"shop.desc: {said}")


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (json_schema(n={"type": "integer"}), b'{"n": 1}'),
        (BodySchema(AVRO, json.dumps(AVRO_SCHEMA).encode()), avro_body()),
        (BodySchema(PROTOBUF, descriptor_set(), "shop.Order"), protobuf_body()),
    ],
    ids=[JSON, AVRO, PROTOBUF],
)
def test_a_schema_can_be_sent_to_other_processes(schema: BodySchema, body: bytes) -> None:
    sent = pickle.loads(pickle.dumps(schema))  # noqa: S301 - our own
    assert sent.columns == schema.columns
    assert rows_of(sent, body) == rows_of(schema, body)
