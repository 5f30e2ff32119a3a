"""Messages that a consumer group has given up, put back by an operator: the SDK's compare-and-set.

A message that is put back comes to the group's listener again at once, as often as a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pipelines.errors import OperatorError
from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import read_refused
from storage.lake.lake import Lake
from txlake._retries import DEAD, TABLE, ConsumerRetries, Key, Retry, resumed


def plan_resume(
    lake: Lake, group: str, topic: str | None, queue_id: int | None, offset: int | None
) -> list[Row]:
    """Returns the dead messages of a group that fit. Output: DEAD_COLUMNS.

    Errors: OperatorError if there is none.
    """
    rows = [
        row
        for row in read_refused(lake, DEAD, group, topic)
        if queue_id in (None, row["queue_id"]) and offset in (None, row["queue_offset"])
    ]

    if not rows:
        raise OperatorError(
            f"group {group} has no such dead message in the lake {lake.path}: nothing was "
            "written; `txlake consumer dead list` names them"
        )
    return rows


def write_resume(lake: Lake, rows: Sequence[Row]) -> int:
    """Puts dead messages back. Output: how many; one that was resumed meanwhile does not count."""
    keys: list[Key] = [
        (row["consumer_group"], row["topic"], row["queue_id"], row["queue_offset"]) for row in rows
    ]

    def decide(newest: Mapping[Key, Retry], _now: datetime) -> list[Any]:
        rows = [newest[key] for key in keys if key in newest]
        return [resumed(row) for row in rows if row.state == DEAD]

    options = lake.location.storage_options
    table = ConsumerRetries(lake.table_path(TABLE), options, lake.lake_id())
    return len(table.write(decide))
