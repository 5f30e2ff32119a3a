"""Signatures of operations and checks: HMAC-SHA256 under a key that a group shares with the job.

Source: PROTOCOL.md "Signatures". This module imports of the client only the protocol.
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
# The first field of what is signed: the signature of an operation is never that of a check.
_OPERATION, _CHECK = b"txlake operation 1", b"txlake check 1"
# The headers of an operation that are signed, in this order.
_SIGNED: Final = (
    p.PGROUP, p.TRAN_TYPE, p.UNIQ_KEY, p.FROM_CHECK, p.CHECK_ID, p.REMARK, p.ACTOR, p.REASON,
)  # fmt: skip
_Field: TypeAlias = "bytes | str | None"


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

    Errors: ValueError for more than two, or two of one id.
    """
    given = tuple(keys)
    if len(given) > KEYS_MAX:
        raise ValueError(f"{len(given)} keys of a producer group: at most {KEYS_MAX} are allowed")
    if len({key.id for key in given}) < len(given):
        raise ValueError(f"two keys have the id {given[0].id}: each needs an id of its own")
    return given


def sign_operation(
    key: SigningKey, queue_id: int, body: bytes, headers: Mapping[str, _Field]
) -> str:
    """Returns the SIG of an operation. Input: its partition, its value, its other headers."""
    return _sign(key, _operation(queue_id, body, headers))


def is_signed_operation(
    signature: str | None,
    keys: Sequence[SigningKey],
    queue_id: int,
    body: bytes | None,
    headers: Mapping[str, _Field],
) -> bool:
    """Returns whether an operation has a valid signature under one of these keys."""
    return _is_signed(signature, keys, _operation(queue_id, body, headers))


def sign_check(key: SigningKey, headers: Sequence[tuple[str, _Field]], body: bytes | None) -> str:
    """Returns the SIG of a check. Input: its headers in their order, and its value."""
    return _sign(key, _check(headers, body))


def is_signed_check(
    keys: Sequence[SigningKey], headers: Sequence[tuple[str, _Field]], body: bytes | None
) -> bool:
    """Returns whether a check has a valid signature under one of these keys."""
    found = next((value for name, value in headers if name == p.SIG), None)
    # What is not UTF-8 becomes a character that no signature has.
    signature = found.decode(errors="replace") if isinstance(found, bytes) else found
    return _is_signed(signature, keys, _check(headers, body))


def _operation(
    queue_id: int, body: bytes | None, headers: Mapping[str, _Field]
) -> tuple[_Field, ...]:
    return _OPERATION, str(queue_id), body, *map(headers.get, _SIGNED)


def _check(headers: Sequence[tuple[str, _Field]], body: bytes | None) -> tuple[_Field, ...]:
    """Returns the signed fields of a check: all that it says, a property's bytes as they came."""
    digest = None if body is None else sha256(body).digest()
    told = [part for name, value in headers if name != p.SIG for part in (name, value)]
    return _CHECK, digest, *told


def _is_signed(signature: str | None, keys: Sequence[SigningKey], fields: Sequence[_Field]) -> bool:
    said = signature or ""
    key_id = said.partition(":")[0]
    key = next((key for key in keys if key.id == key_id), None)
    return key is not None and said.isascii() and hmac.compare_digest(_sign(key, fields), said)


def _sign(key: SigningKey, fields: Sequence[_Field]) -> str:
    """Returns a signature: the key's id, and the HMAC of the first field, the id and the others.

    Each field is a netstring: its length in bytes, a colon, its bytes, a comma. One that is not
    there is `-,`.
    """
    purpose, *others = fields
    text = b"".join(map(_netstring, (purpose, key.id, *others)))
    return f"{key.id}:{hmac.digest(key.secret, text, 'sha256').hex()}"


def _netstring(value: _Field) -> bytes:
    if value is None:
        return b"-,"
    text = value.encode() if isinstance(value, str) else value
    return b"%d:%b," % (len(text), text)
