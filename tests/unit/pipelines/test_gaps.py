"""Offsets without a record: markers of Kafka's transactions are passed, what is lost is named."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from pipelines.epoch.batch import Batch
from pipelines.epoch.gaps import Gap, unexplained
from storage.wire.record_kinds import HALF
from txlake._counted import counted

_TOPICS = {HALF: "halves"}


def _batch(queue_id: int, offsets: Sequence[int]) -> Batch:
    rows = {
        "queue_id": pa.array([queue_id] * len(offsets), pa.int32()),
        "queue_offset": pa.array(offsets, pa.int64()),
    }
    return Batch({HALF: pa.table(rows)})


@pytest.mark.parametrize(
    ("span", "offsets"),
    [
        pytest.param(range(3, 6), [3, 4, 5], id="no gap"),
        pytest.param(range(0, 4), [0, 2], id="a marker behind each record"),
        pytest.param(range(0, 6), [0, 1, 2], id="three transactions that end at once"),
        pytest.param(range(5, 6), [], id="the marker of what the epoch before has landed"),
        pytest.param(range(5, 7), [6], id="that marker, and a record"),
        pytest.param(range(7, 7), [], id="nothing"),
    ],
)
def test_what_markers_explain_is_passed(span: range, offsets: list[int]) -> None:
    assert list(unexplained(_batch(2, offsets), {("halves", 2): span}, _TOPICS)) == []


@pytest.mark.parametrize(
    ("span", "offsets", "expected"),
    [
        (range(1, 41), [38, 39, 40], (1, 37, 37)),
        (range(0, 10), [0, 9], (1, 8, 8)),
        (range(0, 10), [], (0, 9, 10)),
        (range(0, 12), [0, 1, 2, 10, 11], (3, 9, 7)),
    ],
)
def test_a_gap_that_no_marker_explains_is_named(
    span: range, offsets: list[int], expected: tuple[int, int, int]
) -> None:
    spans = {("halves", 2): span, ("others", 2): range(0, 99)}
    (gap,) = unexplained(_batch(2, offsets), spans, _TOPICS)
    assert gap == Gap("halves", 2, *expected)
    first, last, count = expected
    assert (
        f"halves partition 2: no record at {counted(count, 'offset')} from {first} to {last}"
        in str(gap)
    )
