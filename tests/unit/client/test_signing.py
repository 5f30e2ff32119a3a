"""Signatures: the bytes of docs/protocol/wire.md "Signatures", and whatever is changed is seen."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

import pytest

from txlake._checks import parse_check
from txlake.signing import (
    SigningKey,
    check_signatures,
    group_keys,
    is_signed_check,
    is_signed_operation,
    sign_check,
    sign_operation,
)

KEY = SigningKey("k1", b"0123456789abcdef0123456789abcdef")
NEXT = SigningKey("k2", b"another secret of 32 bytes or so")
HEADERS = {"PGROUP": "shop", "TRAN_TYPE": "8", "UNIQ_KEY": "tx1"}
CHECK: list[tuple[str, bytes | str | None]] = [
    ("PGROUP", b"shop"), ("UNIQ_KEY", b"tx1"), ("HALF_QUEUE_ID", b"2"),
    ("HALF_QUEUE_OFFSET", b"17"), ("colour", b"red"), ("odd", None),
]  # fmt: skip
SENT: Any = [*CHECK, ("CHECK_TIMES", b"1"), ("CHECK_ID", b"2-17-0-1")]


def test_the_signed_text_is_as_the_protocol_says() -> None:
    protocol = (Path(__file__).parents[3] / "docs/protocol/wire.md").read_text("utf-8")
    secret = re.findall(r"^secret +(\S+)$", protocol, re.MULTILINE)[0]
    found = re.findall(r"^signed text +(.+)\nSIG +(?:2:)?(\S+)$", protocol, re.MULTILINE)
    for text, signature in found:
        mac = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        assert signature == f"k1:{mac}"
    key, check = (
        SigningKey("k1", secret.encode()),
        [*SENT[:4], ("REAL_TOPIC", b"orders"), *SENT[6:]],
    )
    assert sign_operation(key, 2, b"17,", HEADERS) == found[0][1]
    assert sign_check(key, check, None) == f"2:{found[1][1]}"


def version_1(headers: list[tuple[str, bytes | str | None]], body: bytes | None) -> str:
    """Return the signature that the SDK of the release before looks for."""

    def netstring(part: bytes | str | None) -> bytes:
        data = part.encode() if isinstance(part, str) else part
        return b"-," if data is None else b"%d:%b," % (len(data), data)

    digest = None if body is None else hashlib.sha256(body).digest()
    parts = ["txlake check 1", "k1", digest, *(part for header in headers for part in header)]
    mac = hmac.new(KEY.secret, b"".join(map(netstring, parts)), hashlib.sha256)
    return f"k1:{mac.hexdigest()}"


@pytest.mark.parametrize("body", [b"body", b"", None])
def test_an_sdk_of_the_release_before_reads_the_first_signature(body: bytes | None) -> None:
    first, second = check_signatures(KEY, CHECK, body)
    assert first == ("SIG", version_1(CHECK, body).encode())
    assert second == ("SIG", sign_check(KEY, CHECK, body).encode())


def test_a_check_of_a_job_of_the_release_before_is_read() -> None:
    signature = ("SIG", version_1(CHECK, b"body").encode())
    assert is_signed_check([KEY], [*CHECK, signature], b"body")
    assert not is_signed_check([KEY], [*CHECK[::-1], signature], b"body")


def test_of_many_signatures_the_first_and_the_last_are_looked_at() -> None:
    good, bad = ("SIG", sign_check(KEY, CHECK, b"body").encode()), ("SIG", b"2:k1:" + b"0" * 64)
    assert is_signed_check([KEY], [*CHECK, bad, good], b"body")
    assert not is_signed_check([KEY], [*CHECK, bad, good, bad], b"body")


def test_the_order_of_a_checks_headers_changes_nothing() -> None:
    signature = ("SIG", sign_check(KEY, CHECK, b"body").encode())
    assert is_signed_check([KEY], [signature, *CHECK[::-1]], b"body")


def test_what_is_not_signed_of_a_check_is_not_read() -> None:
    """A name of another kind of record, and a second header of a name of the protocol's."""
    signature = ("SIG", sign_check(KEY, CHECK, b"body").encode())
    more: list[tuple[str, bytes | str | None]] = [("ACTOR", b"me"), ("UNIQ_KEY", b"tx2")]
    assert is_signed_check([KEY], [*CHECK, *more, signature], b"body")
    assert parse_check(SENT, b"body", "shop") == parse_check([*SENT, *more], b"body", "shop")


@pytest.mark.parametrize(
    ("queue_id", "body", "changed"),
    [
        (2, b"17,", {}),
        (3, b"17,", {}),
        (2, b"18,", {}),
        (2, b"17", {}),
        (2, None, {}),
        *((2, b"17,", {name: "x"}) for name in ("PGROUP", "TRAN_TYPE", "UNIQ_KEY", "FROM_CHECK",
                                                "CHECK_ID", "REMARK", "ACTOR", "REASON")),
        (2, b"17,", {"UNIQ_KEY": None}),
        (2, b"17,", {"REMARK": ""}),
        (2, b"17,", {"CHECK_ID": "a", "REMARK": None}),
    ],
)  # fmt: skip
def test_what_is_changed_in_a_signed_operation_is_seen(
    queue_id: int, body: bytes | None, changed: dict[str, Any]
) -> None:
    signature = sign_operation(KEY, 2, b"17,", HEADERS)
    is_the_same = (queue_id, body, changed) == (2, b"17,", {})
    found = is_signed_operation(signature, [KEY], queue_id, body, {**HEADERS, **changed})
    assert found == is_the_same


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (CHECK, None),
        (CHECK, b""),
        (CHECK[:-1], b"body"),
        (CHECK[1:], b"body"),
        ([("UNIQ_KEY", b"tx2"), *CHECK], b"body"),
        ([*CHECK, ("colour", b"red")], b"body"),
        ([*CHECK, ("more", b"")], b"body"),
        ([*CHECK[:-1], ("odd", b"")], b"body"),
        ([*CHECK[:4], ("colou", b"rred"), *CHECK[5:]], b"body"),
    ],
)
def test_what_is_changed_in_a_signed_check_is_seen(
    headers: list[tuple[str, bytes | str | None]], body: bytes | None
) -> None:
    signature = ("SIG", sign_check(KEY, CHECK, b"body").encode())
    assert is_signed_check([NEXT, KEY], [*CHECK, signature], b"body")
    assert not is_signed_check([NEXT, KEY], [*headers, signature], body)


@pytest.mark.parametrize(
    "signature",
    [None, "", "k1", "k1:", ":", "k1:é", "k1:" + "0" * 64, "k3:" + "0" * 64, "k1:%s:"],
)
def test_what_is_no_signature_under_a_key_of_the_group_is_refused(signature: str | None) -> None:
    good = sign_operation(KEY, 2, b"17,", HEADERS)
    text = signature and signature.replace("%s", good[3:])
    assert not is_signed_operation(text, [KEY, NEXT], 2, b"17,", HEADERS)
    assert not is_signed_operation(good, [NEXT], 2, b"17,", HEADERS)
    assert not is_signed_operation(good, [], 2, b"17,", HEADERS)
    assert is_signed_operation(good, [NEXT, KEY], 2, b"17,", HEADERS)


def test_a_check_without_a_readable_signature_is_refused() -> None:
    assert not is_signed_check([KEY], CHECK, b"body")
    assert not is_signed_check([KEY], [*CHECK, ("SIG", b"\xff")], b"body")
    assert not is_signed_check([KEY], [*CHECK, ("SIG", None)], b"body")


def test_an_operations_signature_is_not_a_checks() -> None:
    text = sign_operation(KEY, 2, b"17,", HEADERS)
    assert not is_signed_check([KEY], [("SIG", text.encode())], b"17,")


@pytest.mark.parametrize(
    ("key_id", "secret", "said"),
    [
        ("", b"s" * 32, "key id ''"),
        ("a:b", b"s" * 32, "key id 'a:b'"),
        ("k", b"s3cret" * 5, "key k: a secret of at least 32 bytes"),
    ],
)
def test_a_key_that_is_not_allowed_is_refused_and_its_secret_is_not_printed(
    key_id: str, secret: bytes, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as error:
        SigningKey(key_id, secret)
    assert "s3cret" not in str(error.value)
    assert "0123" not in repr(KEY)


def test_a_group_has_at_most_two_keys_of_different_ids() -> None:
    assert group_keys([KEY, NEXT]) == (KEY, NEXT)
    with pytest.raises(ValueError, match="3 keys of a producer group: at most 2"):
        group_keys([KEY, NEXT, KEY])
    with pytest.raises(ValueError, match="two keys have the id k1"):
        group_keys([KEY, KEY])
