"""tests/vectors.json: our code makes it, and a client that was written from the page agrees."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import textwrap
import zlib
from collections import defaultdict
from typing import Any

import pytest

from tests.support.vectors import FILE, file_text, read, read_headers, vectors
from txlake import protocol as p

TEXT = FILE.read_text("utf-8")
GIVEN = json.loads(TEXT)
SECRETS = {key_id: secret.encode() for key_id, secret in GIVEN["keys"].items()}
PAGE = (FILE.parents[1] / "docs" / "client-writers.md").read_text("utf-8")
VECTORS = {
    kind: [pytest.param(vector, id=vector["why"]) for vector in GIVEN[kind]]
    for kind in ("operations", "checks")
}


# The functions of the page: a second voice, which knows nothing of our code.
page: dict[str, Any] = {}
for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
    exec(block, page)  # noqa: S102


def headers_of(vector: dict[str, Any]) -> dict[str, list[bytes | None]]:
    """Return headers as a client in another language has them: a map from names to values."""
    by_name = defaultdict[str, list["bytes | None"]](list)
    for name, value in read_headers(vector["headers"]):
        by_name[name].append(value)
    return dict(sorted(by_name.items(), key=lambda item: item[0][::-1]))


def test_the_file_is_what_our_code_makes() -> None:
    assert file_text(vectors()) == TEXT, "python -m tests.support.vectors writes it anew"
    whys = [vector["why"] for kind in ("halves", "operations", "checks") for vector in GIVEN[kind]]
    assert len(set(whys)) == len(whys) > 50


@pytest.mark.parametrize("vector", VECTORS["operations"])
def test_an_operation_is_signed_as_the_page_says(vector: dict[str, Any]) -> None:
    headers = headers_of(vector)
    said = (page["first"](headers, "SIG") or b"").decode()
    key_id = said.partition(":")[0]
    record = vector["partition"], read(vector["value"]), headers
    is_known = key_id in (["anna"] if "ACTOR" in headers else ["k1", "k2"])
    is_signed = is_known and page["sign_operation"](key_id, SECRETS[key_id], *record) == said
    assert vector["is_signed"] == (None if vector["error"] else is_signed)


@pytest.mark.parametrize("vector", VECTORS["checks"])
def test_a_check_is_verified_from_a_map_of_its_headers(vector: dict[str, Any]) -> None:
    keys = {key_id: SECRETS[key_id] for key_id in vector["keys_of_the_client"]}
    record = read(vector["value"]), headers_of(vector), GIVEN["names"]["reserved"]
    assert page["is_signed"](keys, *record) == vector["is_signed"]


@pytest.mark.parametrize("vector", [*VECTORS["operations"], *VECTORS["checks"]])
def test_the_text_that_is_shown_is_the_one_that_is_signed(vector: dict[str, Any]) -> None:
    text = read(vector["signed_text"])
    signatures = [value or b"" for value in headers_of(vector).get("SIG", [])]
    if text is None or not vector["is_signed"]:
        return
    key_id, _, mac = signatures[-1].decode().removeprefix("2:").partition(":")
    assert mac == hmac.new(SECRETS[key_id], text, hashlib.sha256).hexdigest()


def test_the_pages_examples_are_vectors() -> None:
    by_why = {
        vector["why"]: vector
        for kind in ("halves", "operations", "checks")
        for vector in GIVEN[kind]
    }
    half, operation = (
        by_why["the least that a half needs"],
        by_why["the least that an operation needs"],
    )
    check = by_why["a null value is `-,`, not the digest of nothing"]
    blocks = [
        textwrap.dedent(block)
        for block in re.findall(r"^ *```text\n(.*?)^ *```", PAGE, re.M | re.S)
    ]
    shown = [[line.split(maxsplit=2)[:2] for line in block.splitlines()] for block in blocks]
    assert shown[0] == half["headers"]
    assert shown[1] == operation["headers"]
    assert f"signed text  {check['signed_text']}\n" in blocks[2]
    assert f"SIG          {check['headers'][-1][1]}\n" in blocks[2]
    queues = {
        (one["topic"], one["queue_id"], one["half_queues"]): one["half_queue"]
        for one in GIVEN["half_queues"]
    }
    told = re.findall(r"`(\w+)/(\d+)` of (\d+) is (\d+)", PAGE)
    assert len(told) == 2
    for topic, queue_id, count, half_queue in told:
        assert queues[topic, int(queue_id), int(count)] == int(half_queue)


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


def test_the_queue_of_a_key_is_the_one_that_the_page_computes() -> None:
    for vector in GIVEN["ordering_keys"]:
        assert vector["queue_id"] == page["queue_for_key"](vector["key"], vector["queues"])

    of_4 = {
        vector["key"]: vector["queue_id"]
        for vector in GIVEN["ordering_keys"]
        if vector["queues"] == 4
    }
    assert re.findall(r"`c-7` of 4 is queue (\d)", PAGE) == [str(of_4["c-7"])]


def test_the_table_of_keys_is_of_the_vectors() -> None:
    wire = (FILE.parents[1] / "docs" / "protocol" / "wire.md").read_text("utf-8")
    queues = {
        (vector["key"], vector["queues"]): vector["queue_id"] for vector in GIVEN["ordering_keys"]
    }
    (head,) = re.findall(r"^\| key \| of (.*) \|$", wire, re.M)
    counts = [int(count) for count in head.split(" | of ")]
    rows = re.findall(r"^\| `(\S+)` \| (\d+(?: \| \d+)*) \|$", wire, re.M)

    assert len(rows) == 3
    for key, cells in rows:
        assert [int(cell) for cell in cells.split(" | ")] == [queues[key, n] for n in counts]


def test_each_name_of_the_protocol_is_in_the_machines_list() -> None:
    of_kinds = [
        name for kind in ("half", "operation", "check", "admin") for name in GIVEN["names"][kind]
    ]
    assert sorted(set(of_kinds)) == GIVEN["names"]["reserved"] == sorted(p.RESERVED_HEADERS)


@pytest.mark.parametrize("vector", [pytest.param(one, id=one["why"]) for one in GIVEN["halves"]])
def test_the_fault_of_a_half_is_the_one_that_its_case_is_about(vector: dict[str, Any]) -> None:
    faults = {
        "it counts too when it cannot be read": "bad_real_topic",
        "a null PGROUP is none": "bad_producer_group",
        "no id": "bad_transaction_id",
        "a number is ASCII digits": "bad_set",
        "a wire version that is not 1": "newer_version",
    }
    assert vector["error"] == faults.get(vector["why"])
