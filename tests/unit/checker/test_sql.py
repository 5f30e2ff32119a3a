"""SQL over Arrow frames: DuckDB gets few rows as a C stream, many as a table; both are the same."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from checker.frames_ops import sql

SIZES = [1, sql._STREAMED_ROWS, sql._STREAMED_ROWS + 1]
AT = dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("rows", SIZES)
def test_a_text_names_a_frame_as_often_as_it_likes(rows: int) -> None:
    numbers = pa.table({"n": pa.array(range(rows), pa.int64())})
    text = """
    WITH doubled AS (SELECT n, 2 * n AS double FROM numbers)
    SELECT count(*) AS rows, sum(one.double)::BIGINT AS total
    FROM doubled one JOIN doubled other USING (n) JOIN numbers third USING (n)
    WHERE EXISTS (SELECT 1 FROM numbers WHERE numbers.n = one.n)
    """
    assert sql.run(text, numbers=numbers).to_pylist() == [
        {"rows": rows, "total": rows * (rows - 1)}
    ]


@pytest.mark.parametrize("rows", SIZES)
def test_values_come_back_as_they_were(rows: int) -> None:
    values = {
        "n": pa.array(range(rows), pa.int32()),
        "name": pa.array(["order é"] * rows, pa.string()),
        "body": pa.array([b"\0\xff"] * rows, pa.binary()),
        "at": pa.array([AT] * rows, pa.timestamp("us", "UTC")),
        "is_signed": pa.array([True] * rows, pa.bool_()),
        "sets": pa.array([["0-1", None]] * rows, pa.list_(pa.string())),
        "nothing": pa.array([None] * rows, pa.int64()),
    }
    frame = pa.table(values)
    # Twice over, and cut in the midst: chunks and offsets, too.
    frame = pa.concat_tables([frame, frame]).slice(rows // 2, rows)

    assert sql.select(frame.schema, "SELECT * FROM frame", frame=frame).equals(frame)
