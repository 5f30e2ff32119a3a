"""Rows of a topic table as plain values: what Arrow's own to_pylist gives, only sooner."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from storage.schemas import TOPIC
from txlake._to_python import plain_columns

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, dt.timezone.utc)


def _row(number: int) -> dict[str, object]:
    is_full = number % 3 > 0
    return {
        "queue_id": number % 2,
        "queue_offset": number,
        "stored_at": AT,
        "source": "half",
        "born_at": AT + dt.timedelta(microseconds=number) if is_full else None,
        "producer_group": "g\u00fc" if is_full else None,
        "asked_queue_id": number if is_full else None,
        "properties": [(f"k{n}", f"v{number}") for n in range(number % 4)] if is_full else None,
        "body": bytes([number % 256]) if number % 5 else None,
        "half_queue_id": 0,
        "half_queue_offset": number,
        "epoch": 7,
        "raw_headers": [{"key": "a", "value": None}] if number % 7 == 0 else None,
    }


@pytest.mark.parametrize(("start", "count"), [(0, 40), (3, 20), (13, 1), (5, 0)])
def test_plain_rows_are_arrows_own(start: int, count: int) -> None:
    parts = [
        pa.Table.from_pylist([_row(n) for n in range(first, first + 20)], schema=TOPIC)
        for first in (0, 20)
    ]
    rows = pa.concat_tables(parts).slice(start, count)
    wanted = rows.to_pylist()
    for row in wanted:
        row["properties"] = None if row["properties"] is None else dict(row["properties"])
    plain = [
        dict(zip(rows.column_names, values, strict=True))
        for values in zip(*plain_columns(rows), strict=True)
    ]
    assert plain == wanted
