"""A check as the job writes it and as the SDK reads it: the user's headers and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.epoch.checks import _Attempt, _headers
from txlake import CheckedMessage, protocol
from txlake._checks import parse_check

Header = tuple[str, Any]
ROW = {
    "queue_id": 1,
    "queue_offset": 17,
    "arm": 0,
    "check_times": 2,
    "producer_group": "shop",
    "transaction_id": "t17",
    "real_topic": "orders",
    "half_offsets": [17, 18],
}
OWN = [
    ("PGROUP", b"shop"), ("UNIQ_KEY", b"t17"), ("REAL_TOPIC", b"orders"), ("KEYS", b"k"),
    ("HALF_QUEUE_ID", b"1"), ("HALF_QUEUE_OFFSET", b"17,18"), ("CHECK_TIMES", b"2"),
    ("CHECK_ID", b"1-17-0-2"),
]  # fmt: skip


def read(headers: list[Header], body: bytes | None = b"body") -> CheckedMessage:
    check = parse_check(headers, body, "shop")
    assert check is not None
    return check


def half(properties: list[Header], raw: list[Header] | None = None) -> dict[str, Any]:
    """Returns a half as `half` has it."""
    raw_headers = None if raw is None else [{"key": key, "value": value} for key, value in raw]
    return {"keys": "k", "tags": None, "properties": properties, "raw_headers": raw_headers}


def test_a_check_has_the_halfs_properties() -> None:
    headers = _headers(_Attempt(ROW, [], half([("colour", "red")])), False)
    assert headers == [*OWN, ("colour", b"red")]
    message = read(headers)
    assert (message.body, message.keys, message.properties) == (b"body", "k", {"colour": "red"})


@pytest.mark.parametrize("name", sorted(protocol.RESERVED_HEADERS))
@pytest.mark.parametrize("is_raw", [True, False], ids=["in raw_headers", "in properties"])
def test_no_name_of_the_protocol_comes_from_the_half(name: str, is_raw: bool) -> None:
    """In `properties` they stand in lakes from before the names of all tables were reserved."""
    users = [("colour", b"red"), (name, b"true"), ("colour", b"blue"), ("bad", b"\xff")]
    sent = half([], users) if is_raw else half([("colour", "red"), (name, "true")])
    headers = _headers(_Attempt(ROW, [], sent), False)
    users = [header for header in users if header[0] != name] if is_raw else users[:1]
    assert headers == [*OWN, *users]
    message = read(headers)
    assert (message.properties, message.is_body_omitted) == ({"colour": "red"}, False)
    assert (message.queue_offsets, message.check_times) == ((17, 18), 2)


def test_a_body_that_was_left_out_is_said_before_the_users_headers() -> None:
    headers = _headers(_Attempt(ROW, [], half([("colour", "red")])), True)
    assert headers == [*OWN, ("BODY_OMITTED", b"true"), ("colour", b"red")]
    message = read(headers, None)
    assert (message.body, message.is_body_omitted) == (None, True)
    assert message.properties == {"colour": "red"}


@pytest.mark.parametrize(
    ("users", "body", "expected"),
    [
        pytest.param([], None, (None, False, {}), id="a body that is null was not left out"),
        pytest.param(
            [("BODY_OMITTED", b"true")], b"body", (b"body", False, {}),
            id="a body that is there was not left out, whatever a header says",
        ),
        pytest.param(
            [("BODY_OMITTED", b"yes")], None, (None, False, {}), id="only `true` says so"
        ),
        pytest.param(
            [("PGROUP", b"other"), ("CHECK_TIMES", b"9")], b"", (b"", False, {}),
            id="of a name that stands twice the first counts",
        ),
        pytest.param(
            [("a", b"\xff"), ("a", b"1"), ("b", None), ("b", b"1"), ("c", b"1"), ("c", b"2")],
            b"", (b"", False, {"c": "1"}),
            id="it counts too when it is no text",
        ),
        pytest.param(
            [("ACTOR", b"me"), ("TRAN_TYPE", b"8"), ("c", b"1")], b"", (b"", False, {"c": "1"}),
            id="a header of another kind of record is no property",
        ),
    ],
)  # fmt: skip
def test_a_check_is_read_as_the_job_means_it(
    users: list[Header], body: bytes | None, expected: tuple[Any, ...]
) -> None:
    message = read(OWN + users, body)
    assert (message.body, message.is_body_omitted, message.properties) == expected
    assert message.check_times == 2


@pytest.mark.parametrize("missing", ["UNIQ_KEY", "HALF_QUEUE_ID", "HALF_QUEUE_OFFSET", "CHECK_ID"])
def test_a_record_without_what_a_check_needs_is_none(missing: str) -> None:
    headers = [header for header in OWN if header[0] != missing]
    assert parse_check(headers, b"body", "shop") is None


def test_a_check_of_another_group_is_none() -> None:
    assert parse_check(OWN, b"body", "other") is None
