"""Notebook 3: the halves that were pending at an instant, and what became of them.

The lake keeps `epoch_at` of each epoch, and each row's epoch. So the state after any epoch can be
rebuilt, as the job does at its start.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from checker.rules.timing import CHECK_MAX, EXPIRED, next_step
from pipelines.amounts import parse_instant
from pipelines.epoch.parameters import plan_parameters
from pipelines.epoch.recorded_state import restore
from pipelines.explain.rows import Row, to_dicts
from pipelines.notebooks.open_lake import OpenLake
from storage.errors import LakeError
from storage.lake.epochs import Plan
from storage.lake.history import read_plans
from storage.lake.progress import read_progress
from storage.rows import instant

UTC: Final = dt.timezone.utc
_INSTANT: Final = pl.Datetime("ms", "UTC")
_PENDING: Final[dict[str, Any]] = {
    "half": pl.String,
    "transaction_id": pl.String,
    "producer_group": pl.String,
    "real_topic": pl.String,
    "stored_at": _INSTANT,
    "waits_s": pl.Float64,
    "checks": pl.Int64,
    "last_check_at": _INSTANT,
    "next": pl.String,
    "next_at": _INSTANT,
}
_VERSIONS: Final[dict[str, Any]] = {
    "table": pl.String,
    "version": pl.Int64,
    "rows of that version": pl.Int64,
    "rows of epochs up to then": pl.Int64,
}
_BUSIEST = """
WITH steps AS (
  SELECT from_epoch AS epoch, 1 AS step FROM waits
  UNION ALL
  SELECT to_epoch, -1 FROM waits WHERE to_epoch IS NOT NULL
),
pending AS (
  SELECT epoch, sum(sum(step)) OVER (ORDER BY epoch) AS count FROM steps GROUP BY epoch
)
SELECT p.epoch_at FROM plans p
ASOF LEFT JOIN pending n ON p.epoch >= n.epoch
WHERE p.epoch >= $first
ORDER BY coalesce(n.count, 0) DESC, p.epoch DESC LIMIT 1
"""


@dataclass(frozen=True)
class PointInTime:
    """An instant, and the newest epoch at or before it."""

    at: dt.datetime
    epoch: int
    epoch_at: dt.datetime

    def __str__(self) -> str:
        return (
            f"{self.at:%Y-%m-%d %H:%M:%S} UTC: epoch {self.epoch}, epoch_at "
            f"{self.epoch_at:%H:%M:%S.%f}"[:-3]
        )


def point_in_time(lake: OpenLake, at: str | None = None) -> PointInTime:
    """Returns the epoch of an instant: `14:05`, `14:05:30`, `2026-01-31 14:05` or any ISO instant.

    A time of day is the last one before the lake's newest epoch. Without an instant: the last of
    the epochs at which the most halves were pending.
    Units: UTC unless the text says otherwise.
    Errors: ValueError for another text; LakeError for an instant before the first epoch, or before
    the first whose state is there.
    """
    # A merged file can still hold older epochs, without their state.
    first = lake.last.floor.deleted
    when = lake.sql(_BUSIEST, first=first).item() if at is None else _parse(at, lake.last_at())
    plans = lake.sql(
        "SELECT epoch, epoch_at FROM plans WHERE epoch_at <= $at AND epoch >= $first "
        "ORDER BY epoch DESC LIMIT 1",
        at=when,
        first=first,
    )
    if plans.is_empty() and first:
        raise LakeError(
            f"what the lake {lake.lake.path} held at {when} is deleted: it can be seen from epoch "
            f"{first} on"
        )
    if plans.is_empty():
        raise LakeError(f"at {when} the lake {lake.lake.path} had no epoch yet")
    ((epoch, epoch_at),) = plans.rows()
    return PointInTime(when, epoch, epoch_at)


def _parse(text: str, newest: dt.datetime) -> dt.datetime:
    try:
        time = dt.time.fromisoformat(text)
    except ValueError:
        at = parse_instant(text)
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    at = dt.datetime.combine(newest.date(), time, time.tzinfo or UTC)
    return at if at <= newest else at - dt.timedelta(days=1)


def pending(lake: OpenLake, when: PointInTime) -> pl.DataFrame:
    """Returns the halves that waited for their end after the moment's epoch, oldest first.

    Discarded halves are left out. `next`: what time does to it next; `next_at`: the `known_at` of
    its queue at which it does.
    """
    plan = read_plans(lake.lake, [when.epoch])[when.epoch]
    state = restore(lake.lake, read_progress(lake.lake, when.epoch))
    waiting = state.halves.filter(pc.field("discard_cause").is_null())
    rows = sorted(to_dicts(waiting), key=itemgetter("stored_at", "queue_id", "queue_offset"))
    return pl.DataFrame([_pending_row(r, plan) for r in rows], schema=_PENDING, orient="row")


def _pending_row(row: Row, plan: Plan) -> tuple[object, ...]:
    parameters = plan_parameters(plan)
    step = next_step(row, parameters)

    checked_at = None if row["checked_at"] is None else instant(row["checked_at"])
    next_step_text = f"check {row['check_times'] + 1} of {parameters.check_max}"
    if step.rule in (EXPIRED, CHECK_MAX):
        next_step_text = f"discard ({step.rule})"

    return (
        f"{row['queue_id']}-{row['queue_offset']}",
        row["transaction_id"],
        row["producer_group"],
        row["real_topic"],
        instant(row["stored_at"]),
        (plan.epoch_at - row["stored_at"]) / 1000,
        row["check_times"],
        checked_at,
        next_step_text,
        instant(step.reached_at),
    )


def versions(lake: OpenLake, when: PointInTime, *tables: str) -> pl.DataFrame:
    """Compares the rows of tables by Delta's own time travel with those up to the moment's epoch.

    `version`: the newest whose commit was of such an epoch. It is null if Delta cannot read it any
    more, because its log was cleaned or its files are deleted, or if commits do not name their
    epoch. Maintenance changes files and no rows: both ways give the same rows.
    """
    counts = []
    for table in tables:
        text = f'SELECT count(*) FROM "{table}" WHERE epoch <= $epoch'
        by_epoch = lake.sql(text, epoch=when.epoch).item()
        version = _version_at(lake.lake.handle(table), when.epoch)
        try:
            count = None if version is None else _rows_of(lake, table, version)
        except (DeltaError, OSError):
            version = count = None
        counts.append((table, version, count, by_epoch))
    return pl.DataFrame(counts, schema=_VERSIONS, orient="row")


def _version_at(table: DeltaTable, epoch: int) -> int | None:
    history = [(entry["version"], entry.get("txlake.epoch")) for entry in table.history()]
    before = [version for version, written in history if written and int(written) <= epoch]
    return max(before, default=None)


def _rows_of(lake: OpenLake, table: str, version: int) -> int:
    old = DeltaTable(lake.lake.table_path(table), version, lake.lake.location.storage_options)
    return int(old.to_pyarrow_dataset().count_rows())
