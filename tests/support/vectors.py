"""The vectors of the wire form, `tests/vectors.json`: what clients of any language are tried with.

    python -m tests.support.vectors        writes the file anew

What stands in it is made by the code of the job and of the SDK, from the cases in
`tests/support/vector_cases.py`. A change of the file is a change of the wire form: other people's
clients meet it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.epoch.checks import _Attempt, _headers
from pipelines.epoch.signatures import with_verification
from pipelines.settings import SecuritySettings
from storage.rows import instant
from storage.wire.decode import KAFKA, decode_rows
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from tests.support import vector_cases as cases
from txlake import protocol as p
from txlake._checks import parse_check
from txlake._half import half_queue_for
from txlake.ordering import queue_for_key
from txlake.signing import (
    SigningKey,
    check_fields,
    check_signatures,
    is_signed_check,
    operation_fields,
    sign_operation,
    signed_text,
)

FILE = Path(__file__).parents[1] / "vectors.json"
KEYS = {name: SigningKey(name, secret.encode()) for name, secret in cases.SECRETS.items()}
SECURITY = SecuritySettings({cases.GROUP: (KEYS["k1"], KEYS["k2"])}, {"anna": KEYS["anna"]})
TOPICS = {HALF: p.HALF_TOPIC, OP: p.OP_TOPIC, SCHEDULE: p.SCHEDULE_TOPIC, ADMIN: p.ADMIN_TOPIC}
LIMITS = WireLimits(TOPICS, p.CHECK_TOPIC_PREFIX, p.MESSAGE_BYTES_MAX, p.MESSAGES_MAX, 10_000)
Header = tuple[str, "bytes | None"]

_ABOUT = (
    "Vectors of the wire form: docs/client-writers.md says how to use them. Bytes are null, a text "
    "(its UTF-8), or {'hex': ...}."
)


def vectors() -> dict[str, Any]:
    """Returns what stands in the file."""
    return {
        "about": _ABOUT,
        "names": _names(),
        "limits": {
            "message_bytes_max": p.MESSAGE_BYTES_MAX,
            "max.message.bytes": p.batch_bytes_max(p.MESSAGE_BYTES_MAX),
            "messages_max": p.MESSAGES_MAX,
        },
        "group": cases.GROUP,
        "keys": dict(cases.SECRETS),
        "half_queues": [
            {
                "topic": topic,
                "queue_id": queue_id,
                "half_queues": count,
                "half_queue": half_queue_for(topic, queue_id, count),
            }
            for topic, queue_id, count in cases.HALF_QUEUES
        ],
        "ordering_keys": [
            {"key": key, "queues": queues, "queue_id": queue_for_key(key, queues)}
            for key, queues in cases.ORDERING_KEYS
        ],
        "halves": [half_vector(case) for case in cases.HALVES],
        "operations": [operation_vector(case) for case in cases.OPERATIONS],
        "checks": [check_vector(case) for case in cases.CHECKS],
    }


def to_json_value(value: bytes | str | None) -> Any:
    """Returns bytes as the file has them."""
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def read(value: Any) -> bytes | None:
    """Returns the bytes that the file tells."""
    if value is None:
        return None
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def read_headers(pairs: Iterable[tuple[str, Any]]) -> list[Header]:
    """Returns a record's headers, of which the file tells the values as bytes."""
    return [(name, read(value)) for name, value in pairs]


def file_text(content: Mapping[str, Any]) -> str:
    """Returns the file's text: a field of a vector a line, a header a line."""
    return (
        "{\n"
        + ",\n".join(f"{_line(name)}: {_block(one)}" for name, one in content.items())
        + "\n}\n"
    )


def _block(one: Any) -> str:
    if not isinstance(one, list) or not isinstance(one[0], dict):
        return _line(one)
    return "[\n" + ",\n".join(map(_vector, one)) + "\n]"


def _vector(vector: dict[str, Any]) -> str:
    if "why" not in vector:
        return f"  {_line(vector)}"
    lines = []
    for name, value in vector.items():
        text = _line(value)
        if name == "headers" and value:
            text = "[\n      " + ",\n      ".join(map(_line, value)) + "\n    ]"
        lines.append(f"    {_line(name)}: {text}")
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _line(value: Any) -> str:
    return json.dumps(value)


def decoded(kind: str, queue_id: int, value: bytes | None, headers: list[Header]) -> pa.Table:
    """Returns the row that the job lands of a record, with `is_signed`."""
    record = {
        "topic": TOPICS[kind],
        "partition": queue_id,
        "offset": 17,
        "timestamp": instant(1_000),
        "value": value,
        "headers": [{"key": name, "value": data} for name, data in headers],
    }
    rows = decode_rows(pa.Table.from_pylist([record], schema=KAFKA), LIMITS)
    return with_verification(rows, SECURITY) if kind == OP else rows


def half_vector(case: cases.HalfCase) -> dict[str, Any]:
    """Returns a half message, and what the job reads of it."""
    headers = [*case.headers]
    row = decoded(HALF, 2, case.value, headers).to_pylist()[0]

    columns = (
        "producer_group",
        "transaction_id",
        "real_topic",
        "real_queue_id",
        "keys",
        "tags",
        "delay_level",
        "delay_ms",
        "immunity_ms",
        "tran_size",
        "tran_seq",
    )

    reads = {name: row[name] for name in columns if row[name] is not None}
    if row["error"] is None:
        reads["properties"] = dict(row["properties"] or ())

    return {
        "why": case.why,
        "value": to_json_value(case.value),
        "headers": [[name, to_json_value(value)] for name, value in headers],
        "error": row["error"],
        "columns": reads,
    }


def operation_vector(case: cases.OperationCase) -> dict[str, Any]:
    """Returns an operation with its signature, and what the job reads of it."""
    headers: list[Header] = [(name, value.encode()) for name, value in case.headers]
    text = None
    if case.key is not None:
        key = KEYS[case.key]
        queue_id = case.queue_id
        value = case.value
        signed = dict(headers)
        text = signed_text(key, operation_fields(queue_id, value, signed))
        signature = sign_operation(key, queue_id, value, signed)
        headers.append((p.SIG, signature.encode()))
    headers += [(name, value.encode()) for name, value in case.added]

    row = decoded(OP, case.queue_id, case.value, headers).to_pylist()[0]
    return {
        "why": case.why,
        "partition": case.queue_id,
        "value": to_json_value(case.value),
        "headers": [[name, to_json_value(value)] for name, value in headers],
        "key": case.key,
        "signed_text": to_json_value(text),
        "error": row["error"],
        "decision": row["decision"],
        "half_offsets": row["half_offsets"],
        "is_signed": row["is_signed"],
    }


def check_vector(case: cases.CheckCase) -> dict[str, Any]:
    """Returns a check as the job sends it, changed as its case says, and what a client does.

    `message` is null, and `answer` too, if a client passes the record over.
    """
    half = {
        "keys": case.keys,
        "tags": case.tags,
        "properties": (),
        "raw_headers": [{"key": name, "value": value} for name, value in case.users],
    }
    row = {
        "queue_id": 2,
        "queue_offset": case.offsets[0],
        "arm": 0,
        "check_times": 1,
        "producer_group": case.group,
        "transaction_id": "tx1",
        "real_topic": "orders",
        "half_offsets": list(case.offsets),
    }
    headers: list[Header] = _headers(_Attempt(row, [], half), case.is_body_omitted)  # type: ignore
    headers = [header for header in headers if header[0] not in case.missing]
    value = case.value
    text = None
    if case.key is not None:
        text = signed_text(KEYS[case.key], check_fields(headers, value))
        signatures = check_signatures(KEYS[case.key], headers, value)
        headers += signatures[-1:] if case.is_version_2_alone else signatures
    headers, value = case.changed(headers, value)

    keys = [KEYS[name] for name in case.known]
    message = parse_check(headers, value, cases.GROUP)
    is_signed = is_signed_check(keys, headers, value)
    if keys and not is_signed:
        message = None
    return {
        "why": case.why,
        "keys_of_the_client": list(case.known),
        "value": to_json_value(value),
        "headers": [[name, to_json_value(data)] for name, data in headers],
        "signed_text": to_json_value(text),
        "is_signed": is_signed,
        "message": None if message is None else _message(message),
        "answer": None if message is None else _answer(message, keys),
    }


def _message(message: Any) -> dict[str, Any]:
    fields = dataclasses.asdict(message)
    del fields["body"]
    return {**fields, "queue_offsets": list(message.queue_offsets)}


def _answer(message: Any, keys: list[SigningKey]) -> dict[str, Any]:
    """Returns the operation that answers COMMIT."""
    extra = [(p.FROM_CHECK, "true"), (p.CHECK_ID, message.check_id)]
    ids = [message.transaction_id] * len(message.queue_offsets)

    headers = p.operation_headers(cases.GROUP, p.COMMIT, ids, extra)
    value = p.operation_body(message.queue_offsets)

    if keys:
        signature = sign_operation(keys[0], message.queue_id, value, dict(headers))
        headers.append((p.SIG, signature.encode()))
    return {
        "partition": message.queue_id,
        "value": to_json_value(value),
        "headers": [[name, to_json_value(data)] for name, data in headers],
    }


def _names() -> dict[str, Any]:
    return {
        "half": p.HALF_HEADERS,
        "operation": p.OP_HEADERS,
        "check": p.CHECK_HEADERS,
        "admin": p.ADMIN_HEADERS,
        "reserved": sorted(p.RESERVED_HEADERS),
    }


if __name__ == "__main__":
    FILE.write_text(file_text(vectors()), "utf-8")
