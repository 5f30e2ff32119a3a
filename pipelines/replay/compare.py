"""Replayed rows compared with those of the lake, bit for bit; every difference is named.

Equal tables are compared as columns, which is quick. Only if a column differs, rows are paired by
their keys and compared one by one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.replay.source import ROW_ORDER

CHANGED, MISSING, EXTRA, TWICE = "changed", "missing", "extra", "twice"
DIFFERENCES = pa.schema(
    [
        ("table", pa.string()),
        ("topic", pa.string()),
        ("epoch", pa.int64()),
        ("row", pa.string()),
        ("kind", pa.string()),
        ("column", pa.string()),
        ("there", pa.string()),
        ("replayed", pa.string()),
    ]
)

_HALF_KEY = ROW_ORDER
KEYS: Mapping[str, tuple[str, ...]] = {
    "outcomes": _HALF_KEY,
    "conflicts": ("epoch", "queue_id", "op_queue_offset", "half_queue_offset"),
    "checks": _HALF_KEY,
    "pending": (*_HALF_KEY, "change"),
    "waiting": ("epoch", "queue_id", "op_queue_offset", "position", "change"),
    "delayed": ("epoch", "source", "queue_id", "queue_offset", "change"),
    "deliveries": ("epoch", "source", "queue_id", "queue_offset"),
    "catalog": ("epoch", "topic"),
    "half": _HALF_KEY,
    "op": _HALF_KEY,
    "schedule": _HALF_KEY,
    "admin": _HALF_KEY,
}
TOPIC_KEY = ("queue_id", "queue_offset")
_TEXT_MAX = 200

_PAIRS = """
WITH there AS (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY place) AS n FROM t),
replayed AS (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY place) AS n FROM r)
SELECT t.place AS there, r.place AS replayed, coalesce(t.n, r.n) AS n
FROM there t FULL JOIN replayed r ON {same} AND t.n = r.n
"""


@dataclass(frozen=True)
class Difference:
    """One difference: a column of a row, or a row that one side lacks or repeats."""

    table: str
    topic: str | None
    epoch: int | None
    row: str
    kind: str
    column: str | None = None
    there: str | None = None
    replayed: str | None = None


def differences(
    table: str, topic: str | None, recorded: pa.Table, replayed: pa.Table
) -> Iterator[Difference]:
    """Returns the differences between the rows of one table; both sides have the table's schema."""
    key = TOPIC_KEY if table.startswith("topics/") else KEYS[table]
    recorded = _sort_rows(recorded, key)
    replayed = _sort_rows(replayed, key)
    if recorded.num_rows == replayed.num_rows and all(
        recorded[name].equals(replayed[name]) for name in replayed.column_names
    ):
        return

    pairs = _pairs(recorded, replayed, key)
    both = pairs.filter(pc.and_(pc.is_valid(pairs["there"]), pc.is_valid(pairs["replayed"])))
    yield from _changed_values(
        table, topic, key, recorded.take(both["there"]), replayed.take(both["replayed"])
    )

    for pair in pairs.filter(pc.is_null(pairs["replayed"])).to_pylist():
        (row,) = recorded.slice(pair["there"], 1).to_pylist()
        kind = TWICE if pair["n"] > 1 else EXTRA
        yield Difference(
            table, topic, row["epoch"], _row_name(key, row), kind, there=_row_text(row)
        )

    for pair in pairs.filter(pc.is_null(pairs["there"])).to_pylist():
        (row,) = replayed.slice(pair["replayed"], 1).to_pylist()
        yield Difference(
            table, topic, row["epoch"], _row_name(key, row), MISSING, replayed=_row_text(row)
        )


def _sort_rows(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Returns rows ordered by their key, then by other columns that tell rows of one key apart."""
    others = [name for name in ("arm", "reason", "outcome", "action") if name in rows.column_names]
    names = [*key, *(name for name in others if name not in key)]
    order = pc.sort_indices(rows.select(names), [(name, "ascending") for name in names])
    return rows.take(order).combine_chunks()


def _pairs(recorded: pa.Table, replayed: pa.Table, key: tuple[str, ...]) -> pa.Table:
    text = _PAIRS.format(
        key=", ".join(key),
        same=" AND ".join(f"t.{name} IS NOT DISTINCT FROM r.{name}" for name in key),
    )

    t, r = (
        rows.select(list(key)).append_column("place", pa.array(range(rows.num_rows), pa.int64()))
        for rows in (recorded, replayed)
    )

    return run(text, t=t, r=r).sort_by([("there", "ascending"), ("replayed", "ascending")])


def _changed_values(
    table: str, topic: str | None, key: tuple[str, ...], recorded: pa.Table, replayed: pa.Table
) -> Iterator[Difference]:
    for name in replayed.column_names:
        if recorded[name].equals(replayed[name]):
            continue
        values = zip(recorded[name].to_pylist(), replayed[name].to_pylist(), strict=True)
        for index, (old, new) in enumerate(values):
            if old != new:
                row = {n: recorded[n][index].as_py() for n in {*key, "epoch"}}
                key_text = _row_name(key, row)
                yield Difference(
                    table, topic, row["epoch"], key_text, CHANGED, name, *_texts(old, new)
                )


def _row_name(names: tuple[str, ...], row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={row[name]}" for name in names if name != "epoch")


def _row_text(row: Mapping[str, Any]) -> str:
    """Returns the values of a row as text, without its key."""
    texts = [
        f"{name}={text_of(value)}"
        for name, value in row.items()
        if value is not None and name not in _HALF_KEY
    ]
    return " ".join(texts)[:_TEXT_MAX]


def _texts(old: Any, new: Any) -> tuple[str | None, str | None]:
    """Returns two values as text; of bytes those around the first difference."""
    if isinstance(old, bytes) and isinstance(new, bytes):
        pairs = enumerate(zip(old, new, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
        return _bytes(old, first), _bytes(new, first)

    return text_of(old), text_of(new)


def _bytes(value: bytes, first: int) -> str:
    low = max(0, first - 8)
    return f"{len(value)} bytes, from {low} {value[low : first + 8]!r}, differs at {first}"


def text_of(value: Any) -> str | None:
    """Returns a value as text."""
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, bytes):
        return f"{len(value)} bytes {value[:24]!r}"
    return str(value)[:_TEXT_MAX]
