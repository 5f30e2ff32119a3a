"""A row of a topic's table as a record of Kafka. docs/protocol/wire.md "Published records"."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txlake import protocol as p
from txlake._to_python import plain_columns

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
_PLAIN_COLUMNS: Final = [
    "queue_offset",
    "producer_group",
    "transaction_id",
    "keys",
    "tags",
    "body",
    "raw_headers",
]
# Names of a published record's own headers: a user's header with one of these is left out.
_OWN: Final = p.RESERVED_HEADERS | frozenset(p.PUBLISHED_HEADERS)
_OWN_NEW: Final = frozenset(p.PUBLISHED_HEADERS) - p.RESERVED_HEADERS

Header = tuple[str, Any]


class Record(NamedTuple):
    """A record to be written. Units: `at_ms`, epoch ms."""

    value: bytes | None
    key: str | None
    at_ms: int
    headers: list[Header]


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
        plain = plain_columns(rows.select(_PLAIN_COLUMNS))
        offsets, groups, ids, keys, tags, bodies, raw_headers = plain
        properties = _properties(rows["properties"])
        places = _places(rows)
        times = _times(rows, at_ms)
        topic, lake, has_keys = self._topic, self._lake, self._has_keys

        for offset, place, id_, group, key, tag, pairs, all_headers, body, at in zip(
            offsets,
            places,
            ids,
            groups,
            keys,
            tags,
            properties,
            raw_headers,
            bodies,
            times,
            strict=True,
        ):
            headers: list[Header] = [
                (p.QUEUE_OFFSET, b"%d" % offset),
                (p.PLACE, place),
                topic,
                lake,
            ]
            if id_ is not None:
                headers.append((p.UNIQ_KEY, id_))
            if group is not None:
                headers.append((p.PGROUP, group))
            if key is not None:
                headers.append((p.KEYS, key))
            if tag is not None:
                headers.append((p.TAGS, tag))

            if all_headers is not None:
                headers += _raw_properties(all_headers)
            elif pairs:
                headers += pairs

            yield Record(body, key if has_keys else None, at, headers)


def _properties(column: pa.ChunkedArray) -> list[list[Header]]:
    """Returns each row's properties; empty where it has none."""
    return [pairs for chunk in column.chunks for pairs in _of_chunk(chunk)]


def _of_chunk(maps: pa.MapArray) -> list[list[Header]]:
    starts = maps.offsets.to_numpy().tolist()
    first, last = starts[0], starts[-1]
    names = maps.keys.slice(first, last - first)
    values = maps.items.slice(first, last - first)
    pairs = list(zip(*plain_columns(pa.table([names, values], ["name", "value"])), strict=True))
    rows = [pairs[start - first : end - first] for start, end in itertools.pairwise(starts)]

    if _OWN_NEW.isdisjoint(pc.unique(names).to_pylist()):
        return rows
    return [[pair for pair in row if pair[0] not in _OWN_NEW] for row in rows]


def _raw_properties(headers: list[dict[str, Any]]) -> list[Header]:
    """Returns the user's headers where no text column holds them all: as they were sent."""
    return [(header["key"], header["value"]) for header in headers if header["key"] not in _OWN]


def _places(rows: pa.Table) -> list[str]:
    """Returns the places of the halves or schedule records, as a command's target has them."""
    text = pa.string()
    places = pc.binary_join_element_wise(
        pc.binary_join_element_wise(
            rows["source"].cast(text), rows["half_queue_id"].cast(text), ":"
        ),
        rows["half_queue_offset"].cast(text),
        "-",
    )
    return plain_columns(pa.table([places], ["place"]))[0]


def _times(rows: pa.Table, at_ms: pa.Array | None) -> list[int]:
    delivered = rows["stored_at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    times = delivered if at_ms is None else pc.coalesce(at_ms, delivered)
    return times.to_numpy().tolist()  # type: ignore[no-any-return]
