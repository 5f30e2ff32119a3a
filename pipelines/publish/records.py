"""A row of a topic's table as a record of Kafka. docs/protocol/wire.md "Published records"."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txlake import protocol as p

# The columns that a record is made of.
COLUMNS: Final = (
    "queue_id",
    "queue_offset",
    "stored_at",
    "source",
    "producer_group",
    "transaction_id",
    "keys",
    "tags",
    "properties",
    "body",
    "half_queue_id",
    "half_queue_offset",
    "raw_headers",
)
# The headers that are columns; a row without a value has no such header.
_COLUMN_HEADERS: Final = (
    (p.UNIQ_KEY, "transaction_id"),
    (p.PGROUP, "producer_group"),
    (p.KEYS, "keys"),
    (p.TAGS, "tags"),
)
# Names of a published record's own headers: a user's header with one of these is left out.
_OWN: Final = p.RESERVED_HEADERS | frozenset(p.PUBLISHED_HEADERS)
_OWN_NEW: Final = frozenset(p.PUBLISHED_HEADERS) - p.RESERVED_HEADERS

Header = tuple[str, str | bytes | None]  # the type of librdkafka's client; ours are bytes


class Record(NamedTuple):
    """A record to be written. Units: `at_ms`, epoch ms."""

    value: bytes | None
    key: bytes | None
    at_ms: int
    headers: list[Header]

    def own_headers(self) -> dict[str, str]:
        """Returns the headers that are not a user's, as texts."""
        return {
            name: value.decode()
            for name, value in self.headers
            if name in _OWN and isinstance(value, bytes)
        }


class RecordMaker:
    """A maker of records from one topic's rows.

    Input: whether KEYS is the key of a record.
    """

    def __init__(self, topic: str, lake_id: str, *, has_keys: bool) -> None:
        self._topic = (p.REAL_TOPIC, topic.encode())
        self._lake = (p.LAKE_ID, lake_id.encode())
        self._has_keys = has_keys

    def records(self, rows: pa.Table, at_ms: pa.Array | None = None) -> Iterator[Record]:
        """Returns the records of rows, in their order.

        Input: rows with COLUMNS; when each half was stored, null where the lake no longer has it:
        the record then has the time of its delivery.
        """
        bodies = _as_bytes(rows["body"])
        keys = _as_bytes(rows["keys"]) if self._has_keys else itertools.repeat(None)
        times = _times(rows, at_ms)

        for body, key, at, own, properties in zip(
            bodies, keys, times, self._own_headers(rows), _properties(rows), strict=False
        ):
            yield Record(body, key, at, [*own, *properties])

    def _own_headers(self, rows: pa.Table) -> Iterator[Iterable[Header]]:
        """Returns the headers of each row that are not a user's.

        `zip` makes them, one header of all rows at a time, and no row's before it is taken.
        """
        headers = [
            _headers(p.QUEUE_OFFSET, rows["queue_offset"].cast(pa.string())),
            _headers(p.PLACE, _places(rows)),
            itertools.repeat(self._topic),
            itertools.repeat(self._lake),
        ]

        present = [(name, rows[column]) for name, column in _COLUMN_HEADERS]
        present = [(name, values) for name, values in present if _has_values(values)]
        headers += [_headers(name, values) for name, values in present]

        of_rows = zip(*headers, strict=False)
        if not any(values.null_count for _, values in present):
            return of_rows
        return ([header for header in row if header[1] is not None] for row in of_rows)


def _has_values(column: pa.ChunkedArray) -> bool:
    return bool(column.null_count < len(column))


def _headers(name: str, values: pa.ChunkedArray) -> Iterator[Header]:
    """Returns a header of each row."""
    return zip(itertools.repeat(name), _as_bytes(values), strict=False)


def _as_bytes(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Returns texts or bytes as the bytes that Kafka gets."""
    return values.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _properties(rows: pa.Table) -> Iterator[list[Header]]:
    """Returns the headers of each row that are a user's."""
    properties = [pairs for chunk in rows["properties"].chunks for pairs in _of_chunk(chunk)]
    raw = rows["raw_headers"]
    if not _has_values(raw):
        return iter(properties)

    return (
        pairs if headers is None else _raw_properties(headers)
        for pairs, headers in zip(properties, raw.to_pylist(), strict=True)
    )


def _of_chunk(maps: pa.MapArray) -> list[list[Header]]:
    starts = maps.offsets.to_numpy().tolist()
    first, last = starts[0], starts[-1]
    names = maps.keys.slice(first, last - first)
    values = maps.items.slice(first, last - first)
    pairs = list(zip(names.to_numpy(zero_copy_only=False), _as_bytes(values), strict=True))
    rows = [pairs[start - first : end - first] for start, end in itertools.pairwise(starts)]

    if _OWN_NEW.isdisjoint(pc.unique(names).to_pylist()):
        return rows
    return [[pair for pair in row if pair[0] not in _OWN_NEW] for row in rows]


def _raw_properties(headers: list[dict[str, Any]]) -> list[Header]:
    """Returns the user's headers where no text column holds them all: as they were sent."""
    return [(header["key"], header["value"]) for header in headers if header["key"] not in _OWN]


def _places(rows: pa.Table) -> pa.ChunkedArray:
    """Returns the places of the halves or schedule records, as a command's target has them."""
    text = pa.string()
    queues = pc.binary_join_element_wise(
        rows["source"].cast(text), rows["half_queue_id"].cast(text), ":"
    )
    return pc.binary_join_element_wise(queues, rows["half_queue_offset"].cast(text), "-")


def _times(rows: pa.Table, at_ms: pa.Array | None) -> list[int]:
    delivered = rows["stored_at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    times = delivered if at_ms is None else pc.coalesce(at_ms, delivered)
    return times.to_numpy().tolist()  # type: ignore[no-any-return]
