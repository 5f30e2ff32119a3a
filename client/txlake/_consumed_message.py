"""A delivered message, as consumers give it: made of the rows of a topic's table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from txlake import protocol
from txlake._consumer_extra import pa
from txlake._to_python import plain_columns


class ConsumedMessage(NamedTuple):
    """A delivered message: `topic` and `id` name it, in every lake that is made of the same Kafka.

    (`topic`, `queue_id`, `queue_offset`) names it in its lake alone: in a lake that was made anew
    another message can stand there.
    `raw_headers` holds all headers when some are not in the other fields as they came: not UTF-8,
    null, repeated, or with a name of the protocol's. `reason`, `real_topic` and `asked_queue_id`
    are filled in the two topics of messages that could not be delivered. `reconsume_times`: how
    often the group's listener has refused it; 0 from poll().
    """

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes | None
    keys: str | None
    tags: str | None
    properties: Mapping[str, str]
    transaction_id: str | None
    producer_group: str | None
    stored_at: datetime
    born_at: datetime | None
    source: str
    real_topic: str | None
    asked_queue_id: int | None
    reason: str | None
    half_queue_id: int
    half_queue_offset: int
    raw_headers: Sequence[tuple[str, bytes | None]] | None
    epoch: int
    reconsume_times: int = 0

    @property
    def id(self) -> str:
        """The record of Kafka that it was sent as: `half:2-17`, `schedule:0-5`.

        The same text names it in operators' commands. A topic has each id once.
        Source: docs/protocol/rules.md "Operator commands".
        """
        record = protocol.RecordTarget(self.source, self.half_queue_id, self.half_queue_offset)
        return str(record)


_COLUMNS = list(ConsumedMessage._fields[1:-1])


def to_messages(topic: str, rows: pa.Table) -> Iterator[ConsumedMessage]:
    """Returns rows as messages, made column by column: one by one takes twice the time."""
    columns = dict(zip(_COLUMNS, plain_columns(rows.select(_COLUMNS)), strict=True))
    columns["properties"] = [properties or {} for properties in columns["properties"]]

    if rows["raw_headers"].null_count < rows.num_rows:
        columns["raw_headers"] = [
            None if headers is None else [(header["key"], header["value"]) for header in headers]
            for headers in columns["raw_headers"]
        ]

    fields = (itertools.repeat(topic), *columns.values(), itertools.repeat(0))
    return map(ConsumedMessage._make, zip(*fields, strict=False))
