"""Signatures: the bytes of PROTOCOL.md "Signatures", and whatever is changed is seen."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

import pytest

from txlake.signing import (
    SigningKey,
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


def test_the_signed_text_is_as_the_protocol_says() -> None:
    protocol = (Path(__file__).parents[3] / "PROTOCOL.md").read_text("utf-8")
    found = re.search(r"secret +(\S+)\nsigned text +(.+)\nSIG +(\S+)\n", protocol)
    assert found is not None
    secret, text, signature = found.groups()
    mac = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    assert signature == f"k1:{mac}"
    assert sign_operation(SigningKey("k1", secret.encode()), 2, b"17,", HEADERS) == signature


def test_the_text_of_a_check_has_its_body_and_every_header_in_order() -> None:
    digest = hashlib.sha256(b"body").digest()
    text = (
        b"14:txlake check 1,2:k1,32:%b," % digest
        + b"6:PGROUP,4:shop,8:UNIQ_KEY,3:tx1,13:HALF_QUEUE_ID,1:2,17:HALF_QUEUE_OFFSET,2:17,"
        + b"6:colour,3:red,3:odd,-,"
    )
    mac = hmac.new(KEY.secret, text, hashlib.sha256).hexdigest()
    assert sign_check(KEY, CHECK, b"body") == f"k1:{mac}"


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
        ([*CHECK[1:], CHECK[0]], b"body"),
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
