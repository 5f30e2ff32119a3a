"""A row of a topic's table as a record of Kafka. docs/protocol/wire.md "Published records"."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

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

# A record to be written: its value, key, time (epoch ms) and headers. A plain tuple: a million of
# them as a class of ours take a second.
Record = tuple[bytes | None, bytes | None, int, list[Header]]


def own_headers(headers: Iterable[Header]) -> dict[str, str]:
    """Returns the headers that are not a user's, as texts."""
    return {
        name: value.decode() for name, value in headers if name in _OWN and isinstance(value, bytes)
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
        keys = _as_bytes(rows["keys"]) if self._has_keys else [None] * len(bodies)
        times = _times(rows, at_ms)

        return zip(bodies, keys, times, self._headers(rows), strict=True)

    def _headers(self, rows: pa.Table) -> Iterator[list[Header]]:
        """Returns the headers of each row, ours before a user's.

        `zip` makes them, one header of all rows at a time, and no row's before it is taken.
        """
        present = [(name, rows[column]) for name, column in _COLUMN_HEADERS]
        present = [(name, values) for name, values in present if _has_values(values)]
        own = [
            _header_of_rows(p.QUEUE_OFFSET, rows["queue_offset"].cast(pa.string())),
            _header_of_rows(p.PLACE, _places(rows)),
            itertools.repeat(self._topic, rows.num_rows),
            itertools.repeat(self._lake, rows.num_rows),
            *(_header_of_rows(name, values) for name, values in present),
        ]

        properties = _Properties(rows)
        if properties.count is not None:
            columns = zip(*own, *properties.columns(), strict=True)
            headers: Iterator[list[Header]] = map(list, columns)
        else:
            headers = (
                [*ours, *users]
                for ours, users in zip(zip(*own, strict=True), properties.of_rows(), strict=True)
            )

        first = len(own) - len(present)
        for at in reversed(range(len(present))):  # so that the indexes before it stay
            _, values = present[at]
            if values.null_count:
                headers = _without(headers, first + at, values.is_null().to_numpy().tolist())
        return headers


def _without(
    headers: Iterator[list[Header]], at: int, is_missing: Iterable[bool]
) -> Iterator[list[Header]]:
    """Yields the headers of each row, without that at an index where the row has no value."""
    for row, is_gone in zip(headers, is_missing, strict=True):
        if is_gone:
            del row[at]
        yield row


def _has_values(column: pa.ChunkedArray) -> bool:
    return bool(column.null_count < len(column))


def _header_of_rows(name: str, values: pa.ChunkedArray) -> Iterator[Header]:
    """Returns a header of each row. Where all have one value it is one object."""
    if len(values) and values[0] == values[-1] and pc.all(pc.equal(values, values[0])).as_py():
        return itertools.repeat((name, _as_bytes(values[:1])[0]), len(values))
    return zip(itertools.repeat(name, len(values)), _as_bytes(values), strict=True)


def _as_bytes(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Returns texts or bytes as the bytes that Kafka gets."""
    return values.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class _Properties:
    """The headers of rows that are a user's.

    `count`: the number of each row's headers, if all have as many; else None.
    """

    def __init__(self, rows: pa.Table) -> None:
        maps = rows["properties"].combine_chunks()
        starts = maps.offsets.to_numpy()
        held = slice(starts[0], starts[-1])

        self._raw = rows["raw_headers"]
        self._starts = starts - starts[0]
        self._names = maps.keys[held].dictionary_encode()
        self._values: list[bytes] = _as_bytes(maps.items[held])
        self._has_ours = not _OWN_NEW.isdisjoint(self._names.dictionary.to_pylist())
        self.count = self._count()

    def _count(self) -> int | None:
        if self._has_ours or _has_values(self._raw):
            return None

        counts = self._starts[1:] - self._starts[:-1]
        first = int(counts[0]) if len(counts) else 0
        return first if (counts == first).all() else None

    def columns(self) -> list[Iterator[Header]]:
        """Returns the first header of each row, the second one and so on, if all have as many."""
        count = self.count or 0
        names = self._names.dictionary.to_pylist()
        of_headers = self._names.indices.to_numpy()
        columns: list[Iterator[Header]] = []

        for number in range(count):
            of_rows = of_headers[number::count]
            is_same = (of_rows == of_rows[0]).all()
            names_of_rows = (
                itertools.repeat(names[of_rows[0]], len(of_rows))
                if is_same
                else map(names.__getitem__, of_rows.tolist())
            )
            columns.append(zip(names_of_rows, self._values[number::count], strict=True))
        return columns

    def of_rows(self) -> Iterator[list[Header]]:
        """Returns the headers of each row."""
        names = self._names.to_numpy(zero_copy_only=False).tolist()
        pairs: list[Header] = list(zip(names, self._values, strict=True))
        rows = (pairs[start:end] for start, end in itertools.pairwise(self._starts.tolist()))
        if self._has_ours:
            rows = ([pair for pair in row if pair[0] not in _OWN_NEW] for row in rows)
        if not _has_values(self._raw):
            return rows

        return (
            pairs if headers is None else _raw_properties(headers)
            for pairs, headers in zip(rows, self._raw.to_pylist(), strict=True)
        )


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
