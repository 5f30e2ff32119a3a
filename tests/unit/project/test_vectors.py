"""tests/vectors.json: our code makes it, and a client that was written from the page agrees."""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from collections import defaultdict
from typing import Any

import pytest

from tests.support.vectors import FILE, KEYS, file_text, read, read_headers, vectors
from txlake import protocol as p

TEXT = FILE.read_text("utf-8")
GIVEN = json.loads(TEXT)
VECTORS = {
    kind: [pytest.param(vector, id=vector["why"]) for vector in GIVEN[kind]]
    for kind in ("operations", "checks")
}


def netstring(value: bytes | None) -> bytes:
    return b"-," if value is None else b"%d:%b," % (len(value), value)


def mac(key_id: str, text: bytes) -> str:
    return hmac.new(GIVEN["keys"][key_id].encode(), text, hashlib.sha256).hexdigest()


class Headers:
    """Headers as a client in another language has them: a map, without the order of names."""

    def __init__(self, pairs: list[Any]) -> None:
        self.by_name: dict[str, list[bytes | None]] = defaultdict(list)
        for name, value in read_headers(pairs):
            self.by_name[name].append(value)

    def first(self, name: str) -> bytes | None:
        return self.by_name[name][0] if name in self.by_name else None


def test_the_file_is_what_our_code_makes() -> None:
    assert file_text(vectors()) == TEXT, "python -m tests.support.vectors writes it anew"
    whys = [vector["why"] for kind in ("halves", "operations", "checks") for vector in GIVEN[kind]]
    assert len(set(whys)) == len(whys) > 50


@pytest.mark.parametrize("vector", VECTORS["operations"])
def test_an_operation_is_signed_as_the_page_says(vector: dict[str, Any]) -> None:
    headers = Headers(vector["headers"])
    key_id, _, _ = (headers.first(p.SIG) or b"").decode().partition(":")
    fields = [b"txlake operation 1", key_id.encode(), b"%d" % vector["partition"],
              read(vector["value"]), *map(headers.first, (
                  "PGROUP", "TRAN_TYPE", "UNIQ_KEY", "FROM_CHECK", "CHECK_ID", "REMARK", "ACTOR",
                  "REASON"))]  # fmt: skip
    text = b"".join(map(netstring, fields))
    expected = KEYS["anna"] if headers.first("ACTOR") else KEYS.get(key_id)
    is_signed = expected is not None and expected.id == key_id and (
        headers.first(p.SIG) == f"{key_id}:{mac(key_id, text)}".encode()
    )  # fmt: skip
    assert vector["is_signed"] == (None if vector["error"] else is_signed)
    if is_signed:
        assert read(vector["signed_text"]) == text


@pytest.mark.parametrize("vector", VECTORS["checks"])
def test_a_check_is_verified_from_a_map_of_its_headers(vector: dict[str, Any]) -> None:
    headers = Headers(vector["headers"])
    value = read(vector["value"])
    said = (headers.by_name[p.SIG] or [b""])[-1] or b""
    version, _, rest = said.decode().partition(":")
    key_id = rest.partition(":")[0]

    fields = [b"txlake check 2", key_id.encode(), *map(headers.first, (
        "PGROUP", "UNIQ_KEY", "REAL_TOPIC", "KEYS", "TAGS", "HALF_QUEUE_ID", "HALF_QUEUE_OFFSET",
        "CHECK_TIMES", "CHECK_ID", "BODY_OMITTED"))]  # fmt: skip
    for name in sorted(headers.by_name, key=str.encode):
        if name not in GIVEN["names"]["reserved"]:
            for one in headers.by_name[name]:
                fields += [name.encode(), one]
    fields.append(None if value is None else hashlib.sha256(value).digest())
    text = b"".join(map(netstring, fields))

    is_signed = version == "2" and key_id in vector["keys_of_the_client"] and (
        rest == f"{key_id}:{mac(key_id, text)}"
    )  # fmt: skip
    assert vector["is_signed"] == is_signed
    if is_signed:
        assert read(vector["signed_text"]) == text


def test_a_record_that_is_no_check_for_the_client_has_no_answer() -> None:
    passed = [vector for vector in GIVEN["checks"] if vector["message"] is None]
    assert all(vector["answer"] is None for vector in passed)
    assert 10 < len(passed) < len(GIVEN["checks"]) - 10


def test_an_answer_names_all_halves_and_is_signed_where_the_client_has_a_key() -> None:
    for vector in GIVEN["checks"]:
        if vector["answer"] is None:
            continue
        headers, message = dict(vector["answer"]["headers"]), vector["message"]
        offsets = [int(one) for one in vector["answer"]["value"].split(",") if one]
        assert vector["answer"]["partition"] == message["queue_id"]
        assert offsets == message["queue_offsets"]
        assert headers["UNIQ_KEY"].split(",") == [message["transaction_id"]] * len(offsets)
        assert ("SIG" in headers) == bool(vector["keys_of_the_client"])


def test_the_half_queue_of_a_real_queue_is_the_crc32_of_its_name() -> None:
    for vector in GIVEN["half_queues"]:
        name = f"{vector['topic']}/{vector['queue_id']}".encode()
        assert vector["half_queue"] == zlib.crc32(name) % vector["half_queues"]


def test_each_name_of_the_protocol_is_in_the_machines_list() -> None:
    of_kinds = [name for kind in ("half", "operation", "check", "admin")
                for name in GIVEN["names"][kind]]  # fmt: skip
    assert sorted(set(of_kinds)) == GIVEN["names"]["reserved"] == sorted(p.RESERVED_HEADERS)


@pytest.mark.parametrize(
    "vector", [pytest.param(one, id=one["why"]) for one in GIVEN["halves"]]
)  # fmt: skip
def test_the_fault_of_a_half_is_the_one_that_its_case_is_about(vector: dict[str, Any]) -> None:
    faults = {
        "it counts too when it cannot be read": "bad_real_topic",
        "a null PGROUP is none": "bad_producer_group",
        "no id": "bad_transaction_id",
        "a number is ASCII digits": "bad_set",
        "a wire version that is not 1": "newer_version",
    }
    assert vector["error"] == faults.get(vector["why"])
