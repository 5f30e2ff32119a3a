"""The records of a check topic."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Message

from txlake import protocol
from txlake.listener import CheckedMessage
from txlake.signing import SigningKey, is_signed_check


def read_check(record: Message, producer_group: str) -> CheckedMessage | None:
    """Returns a record's check; None if the record cannot be read as one for this group.

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
        and values.get(protocol.PGROUP, "") == producer_group
    )
    if not is_readable:
        return None
    body = record.value()
    return CheckedMessage(
        transaction_id=values[protocol.UNIQ_KEY],
        topic=values.get(protocol.REAL_TOPIC, ""),
        body=body,
        queue_id=int(queue_id),
        queue_offsets=tuple(int(offset) for offset in offsets.split(",") if offset),
        check_times=int(check_times),
        check_id=values[protocol.CHECK_ID],
        keys=values.get(protocol.KEYS),
        tags=values.get(protocol.TAGS),
        properties={name: value for name, value in values.items() if protocol.is_property(name)},
        is_body_omitted=body is None and values.get(protocol.BODY_OMITTED) == "true",
    )


def is_signed(record: Message, keys: Sequence[SigningKey]) -> bool:
    """Returns whether a check was signed with one of these keys.

    Source: PROTOCOL.md "Signatures".
    """
    return is_signed_check(keys, _headers(record), record.value())


def _texts(record: Message) -> dict[str, str]:
    """Returns the headers that are text; of a name that stands twice the first header counts."""
    first: dict[str, bytes | None] = {}
    for name, value in _headers(record):
        first.setdefault(name, value)
    texts = {}
    for name, value in first.items():
        with suppress(UnicodeDecodeError):
            if value is not None:
                texts[name] = value.decode()
    return texts


def _headers(record: Message) -> Any:
    return record.headers() or []  # a list; the client's annotation leaves that open
