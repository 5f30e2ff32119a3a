"""Transactions by group, topic, keys and age: those that hang, or all of some time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.epoch.clock import CLOCKS_APART_MS
from pipelines.epoch.recorded_state import read_state
from pipelines.explain.reasons import ENDED
from pipelines.explain.rows import (
    Row,
    contains_keys,
    latest_committed,
    latest_floor,
    to_dicts,
    with_keys,
)
from storage.lake.aging import snapshot_before
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant
from storage.wire.record_kinds import HALF
from txlake.protocol import RecordTarget

# `stored_at`: when the broker stored the half, or when it was re-armed: its checks count from then.
# `delivery`: of a committed message: its place (topic:queue-offset), or undeliverable, delayed,
# cancelled; ended, where the row that says which is deleted.
COLUMNS: Final = (
    "target",
    "status",
    "delivery",
    "stored_at",
    "producer_group",
    "real_topic",
    "transaction_id",
    "keys",
    "check_times",
    "checked_at",
    "last_answer_at",
    "ended_at",
    "first_stored_at",
)
# A page of the console leaves out the last column, a table for people ONLY_DATA.
SHOWN: Final = COLUMNS[:-1]
ONLY_DATA: Final = ("checked_at", "last_answer_at", "first_stored_at")
PENDING, UNREADABLE = "PENDING", "UNREADABLE"
_HALF = [
    "queue_id",
    "queue_offset",
    "stored_at",
    "epoch",
    "producer_group",
    "transaction_id",
    "real_topic",
    "keys",
    "error",
]
_PLACE = ["queue_id", "queue_offset", "stored_at"]
_OUTCOME = [
    "queue_id",
    "queue_offset",
    "outcome",
    "decided_at",
    "epoch",
    "real_topic",
    "real_queue_id",
    "real_queue_offset",
]
_DELIVERY = [
    "queue_id",
    "queue_offset",
    "action",
    "real_topic",
    "real_queue_id",
    "real_queue_offset",
    "epoch",
]

_DELIVERED_TO = "format('{}:{}-{}', real_topic, real_queue_id, real_queue_offset)"

# A half of the state waits for its end, unless it is given up; any other has its last outcome.
# Below the floor the row of an outcome or a delivery can be deleted sooner than the half's.
_STATUS = f"""
WITH ends AS (
  SELECT queue_id, queue_offset, outcome, epoch, epoch_ms(decided_at) AS ended_at,
    CASE WHEN real_queue_offset IS NOT NULL THEN {_DELIVERED_TO} END AS place
  FROM outcomes
  QUALIFY row_number() OVER (PARTITION BY queue_id, queue_offset ORDER BY epoch DESC) = 1
),
later AS (  -- what became of a message that was not delivered when it was committed
  SELECT queue_id, queue_offset,
    CASE action WHEN 'DELIVERED' THEN {_DELIVERED_TO} ELSE lower(action) END AS delivery
  FROM deliveries
  QUALIFY row_number() OVER (PARTITION BY queue_id, queue_offset ORDER BY epoch DESC) = 1
)
SELECT h.queue_id, h.queue_offset,
  CASE WHEN h.error IS NOT NULL THEN '{UNREADABLE}'
    WHEN s.queue_id IS NOT NULL AND s.discard_cause IS NULL THEN '{PENDING}'
    WHEN e.outcome IS NULL AND h.epoch <= $deleted THEN '{ENDED.upper()}'
    ELSE e.outcome END AS status,
  CASE WHEN e.outcome = 'COMMITTED' AND (s.queue_id IS NULL OR s.discard_cause IS NOT NULL)
    THEN coalesce(l.delivery, e.place,
      CASE WHEN d.queue_id IS NULL AND e.epoch <= $deleted THEN '{ENDED}' ELSE 'delayed' END)
    END AS delivery,
  coalesce(s.stored_at, epoch_ms(h.stored_at)) AS stored_at,
  epoch_ms(h.stored_at) AS first_stored_at,
  h.producer_group, h.real_topic, h.transaction_id, h.keys,
  s.check_times, s.checked_at, s.last_answer_at,
  CASE WHEN s.queue_id IS NULL OR s.discard_cause IS NOT NULL THEN e.ended_at END AS ended_at
FROM halves h
LEFT JOIN state s ON h.queue_id = s.queue_id AND h.queue_offset = s.queue_offset
LEFT JOIN ends e ON h.queue_id = e.queue_id AND h.queue_offset = e.queue_offset
LEFT JOIN later l ON h.queue_id = l.queue_id AND h.queue_offset = l.queue_offset
LEFT JOIN delayed d ON h.queue_id = d.queue_id AND h.queue_offset = d.queue_offset
ORDER BY stored_at, h.queue_id, h.queue_offset
"""
# After a re-arm a half counts as stored then.
_STORED = """
SELECT h.queue_id, h.queue_offset, coalesce(s.stored_at, epoch_ms(h.stored_at)) AS stored_at
FROM halves h
LEFT JOIN state s ON h.queue_id = s.queue_id AND h.queue_offset = s.queue_offset
WHERE ($since_at IS NULL OR coalesce(s.stored_at, epoch_ms(h.stored_at)) >= $since_at)
  AND ($until_at IS NULL OR coalesce(s.stored_at, epoch_ms(h.stored_at)) <= $until_at)
ORDER BY stored_at, h.queue_id, h.queue_offset
"""
_CHOSEN = """
SELECT * FROM rows
WHERE ($group IS NULL OR producer_group = $group)
  AND ($topic IS NULL OR real_topic = $topic)
  AND ($since_at IS NULL OR stored_at >= $since_at)
  AND ($until_at IS NULL OR stored_at <= $until_at)
ORDER BY stored_at, queue_id, queue_offset
"""


@dataclass(frozen=True)
class Filters:
    """The transactions to list; None: no filter. Units: ms. `keys`: KEYS, or one of their words.

    `since_at`, `until_at`: of `stored_at`, both included; after a re-arm that is the re-arm's.
    """

    group: str | None = None
    topic: str | None = None
    keys: str | None = None
    since_at: int | None = None
    until_at: int | None = None


def state_of(lake: Lake, epoch: int | None = None) -> pa.Table:
    """Returns the halves that can still be ended, as an epoch left them. Output: HALVES.

    Input: the epoch, the newest committed one if none is given. A caller that reads other tables up
    to an epoch hands it in: a job that runs commits the next one in between.
    """
    if epoch is None:
        epoch, _ = latest_committed(lake)
    return read_state(lake, "pending", epoch, snapshot_before(lake, epoch))


def list_pending(lake: Lake, filters: Filters, limit: int | None = None) -> tuple[list[Row], int]:
    """Returns the halves that wait for their end, the oldest first, and how many there are.

    Output: COLUMNS.
    """
    state = state_of(lake)
    values = {name: value for name, value in vars(filters).items() if name != "keys"}
    state = run(_CHOSEN, values, rows=state.filter(pc.is_null(state["discard_cause"])))

    if filters.keys is None:
        halves = _halves(lake, state.slice(0, limit))
    else:
        halves = _halves(lake, state)
        halves = with_keys(halves, filters.keys)

    rows = _rows(
        run(
            _STATUS,
            {"deleted": 0},
            halves=halves,
            state=state,
            delayed=lake.schema("delayed").empty_table(),
            outcomes=lake.schema("outcomes").empty_table(),
            deliveries=lake.schema("deliveries").empty_table(),
        )
    )
    return rows[:limit], state.num_rows if filters.keys is None else len(rows)


def list_stored(lake: Lake, filters: Filters, limit: int | None = None) -> tuple[list[Row], int]:
    """Returns the halves stored in a span of time, whatever their status, and how many there are.

    Output: COLUMNS; the newest of them where there are more than `limit`, the oldest first.
    """
    epoch, _ = latest_committed(lake)
    first = 0 if filters.since_at is None else _epoch_at(lake, filters.since_at)
    until: Bounds = {"epoch": (first, epoch)}
    values = {"producer_group": filters.group, "real_topic": filters.topic}

    # Of many halves few are shown: only for these all columns are read.
    is_chosen = None if filters.keys is None else contains_keys(filters.keys)
    for name, value in values.items():
        if value is not None:
            has_value = pc.field(name) == value
            is_chosen = has_value if is_chosen is None else is_chosen & has_value
    columns = _PLACE if filters.keys is None else [*_PLACE, "keys"]
    stored = read_rows(lake, HALF, columns, until, is_chosen)

    # The record of a half that was re-armed since can be of an earlier epoch.
    state = state_of(lake, epoch)
    rearmed = _rearmed(lake, state, columns, filters.since_at, first, is_chosen)
    if rearmed.num_rows:
        stored = pa.concat_tables([stored, rearmed])
        until = {"epoch": (0, epoch)}
    if filters.keys is not None:
        stored = with_keys(stored, filters.keys)

    times = {"since_at": filters.since_at, "until_at": filters.until_at}
    chosen = run(_STORED, times, halves=stored, state=state)

    shown = chosen.slice(max(0, chosen.num_rows - (limit or chosen.num_rows)))
    shown_bounds: Bounds = {**until, "queue_offset": _offsets(shown)}

    tables = {
        "halves": _halves(lake, shown, until),
        "state": state,
        "outcomes": read_rows(lake, "outcomes", _OUTCOME, shown_bounds),
        "deliveries": read_rows(
            lake, "deliveries", _DELIVERY, shown_bounds, pc.field("source") == HALF
        ),
    }

    # Where nothing is deleted, a committed message without a place is delayed.
    deleted = latest_floor(lake).deleted
    delayed = _delayed(lake, epoch, shown) if deleted else lake.schema("delayed").empty_table()
    return _rows(run(_STATUS, {"deleted": deleted}, delayed=delayed, **tables)), chosen.num_rows


def count_of_group(lake: Lake, group: str) -> int:
    """Returns how many halves of a producer group were stored."""
    epoch, _ = latest_committed(lake)
    is_of_group = pc.field("producer_group") == group
    rows = read_rows(lake, HALF, ["epoch"], {"epoch": (0, epoch)}, is_of_group)
    return int(rows.num_rows)


def _rearmed(
    lake: Lake,
    state: pa.Table,
    columns: list[str],
    since_at: int | None,
    first: int,
    is_chosen: pc.Expression | None,
) -> pa.Table:
    """Returns the places of halves that were re-armed since, and stored before epoch `first`."""
    if since_at is not None:
        is_since = (pc.field("arm") > 0) & (pc.field("stored_at") >= since_at)
        state = state.filter(is_since)
    if since_at is None or state.num_rows == 0:
        return pa.schema([lake.schema(HALF).field(name) for name in columns]).empty_table()

    bounds: Bounds = {"epoch": (0, first - 1), "queue_offset": _offsets(state)}
    records = read_rows(lake, HALF, columns, bounds, is_chosen)
    return run(
        "SELECT r.* FROM records r SEMI JOIN state s "
        "ON r.queue_id = s.queue_id AND r.queue_offset = s.queue_offset",
        records=records,
        state=state,
    ).cast(records.schema)


def _epoch_at(lake: Lake, at_ms: int) -> int:
    """Returns the first epoch that can have landed a record stored at this instant or later.

    The broker's clock can be ahead of the one that `epoch_at` is of.
    """
    bounds: Bounds = {"epoch_at": (instant(max(0, at_ms - CLOCKS_APART_MS)), None)}
    first = pc.min(read_rows(lake, "epochs", ["epoch"], bounds)["epoch"]).as_py()
    if first is None:
        return 1 << 62

    # When an epoch was that is deleted is not known; halves that wait can be of it.
    return 0 if first <= latest_floor(lake).deleted + 1 else int(first)


def _delayed(lake: Lake, epoch: int, places: pa.Table) -> pa.Table:
    """Returns the messages of some halves that were still delayed after an epoch."""
    bounds: Bounds = {"queue_offset": _offsets(places)}
    rows = read_state(lake, "delayed", epoch, snapshot_before(lake, epoch), bounds)
    return rows.filter(pc.equal(rows["source"], HALF))


def _halves(lake: Lake, places: pa.Table, until: Bounds | None = None) -> pa.Table:
    """Returns the records of the halves at some places."""
    records = read_rows(lake, HALF, _HALF, {**(until or {}), "queue_offset": _offsets(places)})
    return run(
        "SELECT h.* FROM records h SEMI JOIN places p "
        "ON h.queue_id = p.queue_id AND h.queue_offset = p.queue_offset",
        records=records,
        places=places,
    )


def _offsets(rows: pa.Table) -> list[int]:
    return sorted(set(rows["queue_offset"].to_pylist()))


def _rows(table: pa.Table) -> list[Row]:
    return [
        {
            **{name: row[name] for name in COLUMNS[1:]},
            "target": str(RecordTarget(HALF, row["queue_id"], row["queue_offset"])),
        }
        for row in to_dicts(table)
    ]
