"""The records of a check topic."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from txlake import protocol
from txlake.listener import CheckedMessage
from txlake.signing import SigningKey, is_signed_check


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and the producer group that it asks."""

    producer_group: str
    message: CheckedMessage


def read_check(record: Message) -> Check | None:
    """Returns a record's check; None if the record cannot be read as one.

    Source: PROTOCOL.md "The check".
    """
    values = _texts(record)
    offsets = values.get(protocol.HALF_QUEUE_OFFSET, "")
    queue_id = values.get(protocol.HALF_QUEUE_ID, "")
    check_times = values.get(protocol.CHECK_TIMES, "")
    is_readable = (
        protocol.matches(protocol.OFFSETS_PATTERN, offsets)
        and protocol.matches(protocol.SMALL_NUMBER_PATTERN, queue_id)
        and protocol.matches(protocol.SMALL_NUMBER_PATTERN, check_times)
        and protocol.matches(protocol.TRANSACTION_ID_PATTERN, values.get(protocol.UNIQ_KEY, ""))
        and protocol.CHECK_ID in values
    )
    if not is_readable:
        return None
    body = record.value()
    is_body_omitted = body is None and values.get(protocol.BODY_OMITTED) == "true"
    message = CheckedMessage(
        transaction_id=values[protocol.UNIQ_KEY],
        topic=values.get(protocol.REAL_TOPIC, ""),
        body=body if isinstance(body, bytes) else None,
        queue_id=int(queue_id),
        queue_offsets=tuple(int(offset) for offset in offsets.split(",") if offset),
        check_times=int(check_times),
        check_id=values[protocol.CHECK_ID],
        keys=values.get(protocol.KEYS),
        tags=values.get(protocol.TAGS),
        properties={name: value for name, value in values.items() if protocol.is_property(name)},
        is_body_omitted=is_body_omitted,
    )
    return Check(values.get(protocol.PGROUP, ""), message)


def is_signed(record: Message, keys: Sequence[SigningKey]) -> bool:
    """Returns whether a check was signed with one of these keys.

    Source: PROTOCOL.md "Signatures".
    """
    headers: Any = record.headers() or []
    body = record.value()
    return is_signed_check(keys, headers, body if isinstance(body, bytes) else None)


def _texts(record: Message) -> dict[str, str]:
    """Returns the headers that are text; of a name that stands twice the first header counts."""
    first: dict[str, bytes | None] = {}
    headers: Any = record.headers() or []  # a list; the client's annotation leaves that open
    for name, value in headers:
        first.setdefault(name, value)
    texts = {}
    for name, value in first.items():
        with suppress(UnicodeDecodeError):
            if value is not None:
                texts[name] = value.decode()
    return texts
