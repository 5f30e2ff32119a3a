"""Messages that a consumer group has given up, resumed or dropped by an operator.

Both are the SDK's compare-and-set. A message that is resumed comes to the group's listener again at
once, as often as a new one. One that is dropped does not come again: its row says who dropped it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from pipelines.errors import OperatorError
from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import read_refused
from storage.lake.lake import Lake
from txlake._retries import DEAD, TABLE, ConsumerRetries, Key, Retry, dropped, resumed


def find_dead(
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
    """Resumes dead messages. Output: how many; one that is not dead any more does not count."""
    return _write(lake, rows, lambda row, _: resumed(row))


def write_drop(lake: Lake, rows: Sequence[Row], actor: str, reason: str) -> int:
    """Drops dead messages. Output: as of `write_resume`."""
    return _write(lake, rows, lambda row, now: dropped(row, actor, reason, now))


def _write(lake: Lake, rows: Sequence[Row], after: Callable[[Retry, datetime], Retry]) -> int:
    """Writes what becomes of dead messages. Input: `after`: their new row."""
    keys: list[Key] = [
        (row["consumer_group"], row["topic"], row["queue_id"], row["queue_offset"]) for row in rows
    ]

    def decide(newest: Mapping[Key, Retry], now: datetime) -> list[Retry]:
        rows = [newest[key] for key in keys if key in newest]
        return [after(row, now) for row in rows if row.state == DEAD]

    options = lake.location.storage_options
    table = ConsumerRetries(lake.table_path(TABLE), options, lake.lake_id())
    return len(table.write(decide))
