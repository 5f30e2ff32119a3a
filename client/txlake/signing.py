"""Signatures of operations and checks: HMAC-SHA256 under a key that a group shares with the job.

Source: docs/protocol/wire.md "Signatures". This module imports of the client only the protocol.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

from txlake import protocol as p

KEYS_MAX: Final = 2  # of a producer group: the one that signs, and the one before or after it
SECRET_BYTES_MIN: Final = 32
_ID_PATTERN = "[A-Za-z0-9._-]{1,64}"
# The first signed field, so that the signature of an operation is never that of a check.
_OPERATION: Final = b"txlake operation 1"
_CHECK: Final = b"txlake check 2"
_CHECK_1: Final = b"txlake check 1"
# The beginning of a check's signature; one of version 1 has no such beginning.
_VERSION: Final = "2:"
# The headers of an operation that are signed, in this order.
_SIGNED: Final = (
    p.PGROUP,
    p.TRAN_TYPE,
    p.UNIQ_KEY,
    p.FROM_CHECK,
    p.CHECK_ID,
    p.REMARK,
    p.ACTOR,
    p.REASON,
)
# The headers of a check that are signed, in this order; the user's properties follow.
_SIGNED_OF_A_CHECK: Final = tuple(name for name in p.CHECK_HEADERS if name != p.SIG)
_Field: TypeAlias = "bytes | str | None"
_Headers: TypeAlias = "Sequence[tuple[str, _Field]]"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key of a producer group or of an operator; `id` stands in every signature.

    Errors: ValueError for an id or a secret that is not allowed.
    """

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not p.matches(_ID_PATTERN, self.id):
            raise ValueError(f"key id {self.id!r}: text like {_ID_PATTERN} is allowed")
        if not isinstance(self.secret, bytes) or len(self.secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"key {self.id}: a secret of at least {SECRET_BYTES_MIN} bytes is allowed"
            )


def group_keys(keys: Iterable[SigningKey]) -> tuple[SigningKey, ...]:
    """Returns the keys of a producer group: the first one signs.

    Errors: ValueError for more than two, two of one id, or what is no list of keys.
    """
    argument: object = keys
    is_list = isinstance(argument, Iterable)
    keys = tuple(keys) if is_list else ()
    if not is_list or not all(isinstance(key, SigningKey) for key in keys):
        raise ValueError("keys: a list of SigningKey is allowed")  # what it is can be a secret
    if len(keys) > KEYS_MAX:
        raise ValueError(f"{len(keys)} keys of a producer group: at most {KEYS_MAX} are allowed")
    if len({key.id for key in keys}) < len(keys):
        raise ValueError(f"two keys have the id {keys[0].id}: each needs an id of its own")

    return keys


def sign_operation(
    key: SigningKey, queue_id: int, body: bytes, headers: Mapping[str, _Field]
) -> str:
    """Returns the SIG of an operation. Input: its partition, its value, its other headers."""
    return _sign(key, operation_fields(queue_id, body, headers))


def is_signed_operation(
    signature: str | None,
    keys: Sequence[SigningKey],
    queue_id: int,
    body: bytes | None,
    headers: Mapping[str, _Field],
) -> bool:
    """Returns whether an operation has a valid signature under one of these keys."""
    return _is_signed(signature, keys, operation_fields(queue_id, body, headers))


def check_signatures(key: SigningKey, headers: _Headers, body: bytes | None) -> p.Headers:
    """Returns the SIG headers with which the job ends a check: version 1, then version 2.

    For one release: the SDK that knows version 1 alone reads the first of them.
    Input: the check's other headers in their order, and its value.
    """
    signatures = (_sign(key, _check_1(headers, body)), sign_check(key, headers, body))
    return [(p.SIG, signature.encode()) for signature in signatures]


def sign_check(key: SigningKey, headers: _Headers, body: bytes | None) -> str:
    """Returns the SIG of a check, version 2. Input: its headers and its value.

    Headers of different names can come in any order.
    """
    return _VERSION + _sign(key, check_fields(headers, body))


def is_signed_check(keys: Sequence[SigningKey], headers: _Headers, body: bytes | None) -> bool:
    """Returns whether a check has a valid signature under one of these keys.

    Of several SIG the last can be of version 2, the first of version 1: a stranger's record with
    thousands of them costs two digests.
    """
    signatures = [value for name, value in headers if name == p.SIG]
    if not signatures:
        return False

    first = _text(signatures[0])
    last = _text(signatures[-1])
    if last.startswith(_VERSION) and _is_signed(
        last.removeprefix(_VERSION), keys, check_fields(headers, body)
    ):
        return True
    return _is_signed(first, keys, _check_1(headers, body))


def operation_fields(
    queue_id: int, body: bytes | None, headers: Mapping[str, _Field]
) -> tuple[_Field, ...]:
    """Returns the signed fields of an operation; the order of its headers does not matter."""
    return _OPERATION, str(queue_id), body, *map(headers.get, _SIGNED)


def check_fields(headers: _Headers, body: bytes | None) -> tuple[_Field, ...]:
    """Returns the signed fields of a check; the order of its headers does not matter.

    The protocol's headers come first, then the user's, sorted by the bytes of their names; headers
    of one name keep their order.
    """
    first: dict[str, _Field] = {}
    for name, value in headers:
        first.setdefault(name, value)
    protocol_values = [first.get(name) for name in _SIGNED_OF_A_CHECK]

    properties = [header for header in headers if p.is_property(header[0])]
    properties.sort(key=lambda header: header[0].encode())
    property_fields = [part for header in properties for part in header]

    return _CHECK, *protocol_values, *property_fields, _digest(body)


def _check_1(headers: _Headers, body: bytes | None) -> tuple[_Field, ...]:
    """Returns the signed fields of version 1: all headers but SIG, in the order of the record."""
    signed = [header for header in headers if header[0] != p.SIG]
    fields = [part for header in signed for part in header]

    return _CHECK_1, _digest(body), *fields


def _digest(body: bytes | None) -> bytes | None:
    return None if body is None else sha256(body).digest()


def _text(value: _Field) -> str:
    """Returns a header's text; bytes that are not UTF-8 become a character no signature has."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _is_signed(signature: str | None, keys: Sequence[SigningKey], fields: Sequence[_Field]) -> bool:
    signature = signature or ""
    key_id = signature.partition(":")[0]
    key = next((key for key in keys if key.id == key_id), None)

    if key is None or not signature.isascii():
        return False
    return hmac.compare_digest(_sign(key, fields), signature)


def _sign(key: SigningKey, fields: Sequence[_Field]) -> str:
    """Returns a signature: the key's id, and the HMAC of the signed text."""
    return f"{key.id}:{hmac.digest(key.secret, signed_text(key, fields), 'sha256').hex()}"


def signed_text(key: SigningKey, fields: Sequence[_Field]) -> bytes:
    """Returns the text to sign: the first field, the key's id and the other fields as netstrings.

    A netstring is a length in bytes, a colon, the bytes, a comma. A missing field is `-,`.
    """
    purpose, *others = fields
    return b"".join(map(_netstring, (purpose, key.id, *others)))


def _netstring(value: _Field) -> bytes:
    if value is None:
        return b"-,"
    text = value.encode() if isinstance(value, str) else value
    return b"%d:%b," % (len(text), text)
