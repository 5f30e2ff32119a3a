"""Windows of offsets are read of few queues and of many: the same rows as by looking at each."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from txlake._offset_windows import OffsetWindows


def _rows(queues: int, offsets: int) -> pa.Table:
    pairs = [(queue_id, offset) for queue_id in range(queues) for offset in range(offsets)]
    queue_ids, queue_offsets = zip(*pairs, strict=True)
    return pa.table(
        {
            "queue_id": pa.array(queue_ids, pa.int32()),
            "queue_offset": pa.array(queue_offsets, pa.int64()),
            "body": [f"{queue_id}-{offset}" for queue_id, offset in pairs],
        }
    )


@pytest.mark.parametrize("queues", [1, 3, 64, 65, 500])
def test_the_rows_of_each_window_are_read_and_no_other(queues: int) -> None:
    chance = random.Random(queues)
    rows = _rows(queues, 8)
    windows = {}
    for queue_id in chance.sample(range(queues), (queues + 1) // 2):
        begin = chance.randrange(8)
        windows[queue_id] = begin, chance.randrange(begin, 9)

    read = OffsetWindows(windows).read(ds.dataset(rows), ["queue_id", "queue_offset", "body"])
    wanted = [
        row
        for row in rows.to_pylist()
        if row["queue_id"] in windows
        and windows[row["queue_id"]][0] <= row["queue_offset"] < windows[row["queue_id"]][1]
    ]
    assert read.to_pylist() == wanted


def test_windows_of_ten_thousand_queues_end_no_process() -> None:
    windows = OffsetWindows({queue_id: (queue_id % 5, 6) for queue_id in range(10_000)})
    rows = _rows(10, 8)
    read = windows.read(ds.dataset(rows), ["queue_id", "queue_offset"])
    assert read.num_rows == sum(6 - queue_id % 5 for queue_id in range(10))
