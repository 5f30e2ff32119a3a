"""Read a record of a check topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from txlake import protocol
from txlake.listener import CheckedMessage


@dataclass(frozen=True, slots=True)
class Check:
    """Be a check and the producer group it asks."""

    producer_group: str
    message: CheckedMessage


def read_check(record: Message) -> Check | None:
    """Read a check. Output: None for a record that is none; where a header repeats, the first.

    Source: PROTOCOL.md, the check topic.
    """
    values: dict[str, str] = {}
    headers: Any = record.headers() or []  # a list, which the client's annotation leaves open
    for name, value in headers:
        if value is None or name in values:
            continue
        try:
            values[name] = value.decode()
        except UnicodeDecodeError:
            continue
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
    is_body_omitted = values.get(protocol.BODY_OMITTED) == "true"
    message = CheckedMessage(
        transaction_id=values[protocol.UNIQ_KEY],
        topic=values.get(protocol.REAL_TOPIC, ""),
        body=None if is_body_omitted or not isinstance(body, bytes) else body,
        queue_id=int(queue_id),
        queue_offsets=tuple(int(offset) for offset in offsets.split(",") if offset),
        check_times=int(check_times),
        check_id=values[protocol.CHECK_ID],
        keys=values.get(protocol.KEYS),
        tags=values.get(protocol.TAGS),
        properties={
            name: value for name, value in values.items() if name not in protocol.RESERVED_HEADERS
        },
        is_body_omitted=is_body_omitted,
    )
    return Check(values.get(protocol.PGROUP, ""), message)
