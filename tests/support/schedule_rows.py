"""Schedule records in a lake, and how much of it is read to find some of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa

from checker.frames import NEW_SCHEDULES
from storage.files.messages import offset_filter
from storage.files.row_groups import KeyFilter, pruned
from storage.lake.lake import Lake
from storage.rows import to_rows
from storage.schemas import SCHEDULE, row_keys

START_AT = 1_767_225_600_000  # 2026-01-01
MINUTE_MS = 60_000
FAR_MS = 10_000_000
PLACE = ["queue_id", "queue_offset"]
COLUMNS = [*PLACE, "epoch", "deliver_at", "body"]
Row = dict[str, Any]


def frame(rows: list[Row]) -> pa.Table:
    full = [{name: row.get(name) for name in NEW_SCHEDULES.names} for row in rows]
    return pa.Table.from_pylist(full, schema=NEW_SCHEDULES)


def land(lake: Lake, rows: list[Row], epoch: int) -> None:
    bodies = pa.array([f"{row['queue_id']}:{row['queue_offset']}".encode() for row in rows])
    landed = to_rows(frame(rows).append_column("body", bodies), SCHEDULE, epoch=epoch)
    lake.append("schedule", landed, epoch)


def spread(chance: random.Random, count: int, first: int = 0, queue_id: int = 4) -> list[Row]:
    """Return records for all minutes of a day, in no order."""
    minutes = [chance.randrange(1_440) for _ in range(count)]
    return [
        {
            "queue_id": queue_id,
            "queue_offset": first + n,
            "stored_at": START_AT,
            "deliver_at": START_AT + minute * MINUTE_MS,
        }
        for n, minute in enumerate(minutes)
    ]


def groups_read(lake: Lake, named: pa.Table, due: tuple[int, int] | None) -> list[int]:
    """Count the row groups of each file that are read for what is named."""
    wanted = KeyFilter(np.unique(row_keys(named)), due)
    near = pruned(lake.dataset("schedule"), offset_filter(named), wanted, lake.opened)
    return sorted(len(file.row_groups) for file in near.get_fragments())
