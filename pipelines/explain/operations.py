"""The operations that name some halves.

No index says which operations name a half, so all that came in the halves' own time are searched.
"""

from __future__ import annotations

from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DISCARDED
from pipelines.epoch.clock import CLOCKS_APART_MS
from pipelines.epoch.parameters import plan_parameters
from pipelines.explain.rows import Row, set_key, to_dicts
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows

_OP_COLUMNS = [
    "queue_id",
    "queue_offset",
    "stored_at",
    "epoch",
    "producer_group",
    "decision",
    "half_offsets",
    "transaction_ids",
    "from_check",
    "check_id",
    "remark",
    "actor",
    "reason",
    "signature",
    "is_signed",
    "body",
    "error",
]
# Operations that come later than this after an end are shown only when they left a conflict.
_AFTER_END_MS = 600_000


def find_operations(
    lake: Lake,
    halves: list[Row],
    outcomes: list[Row],
    conflicts: list[Row],
    namings: list[Row],
    newest: Plan | None,
) -> list[Row]:
    """Returns the operations that name the halves, or a half of their queues still to come.

    Input: `outcomes`, `conflicts` of the halves; `conflicts` also of records that cannot be read;
    `namings`: the operations that wait in the halves' queues.
    """
    if not halves:
        return []

    queues = sorted({half["queue_id"] for half in halves})
    first = _instant(_first_ms(halves, newest))
    places = {
        (row["queue_id"], row["op_queue_offset"])
        for row in (*outcomes, *conflicts, *namings)
        if row["op_queue_offset"] is not None
    }

    for queue_id in queues:
        of_queue = [half for half in halves if half["queue_id"] == queue_id]
        ends = [o for o in outcomes if o["queue_id"] == queue_id and o["outcome"] != DISCARDED]
        places |= {(queue_id, offset) for offset in _naming_offsets(lake, of_queue, ends, first)}

    bounds: Bounds = {"queue_id": queues, "queue_offset": sorted({o for _, o in places})}
    # Conflicts name the whole queue's unreadable records; those of the halves' time are enough.
    where = pc.field("error").is_null() | (pc.field("stored_at") >= first)
    rows = to_dicts(read_rows(lake, "op", _OP_COLUMNS, bounds, where))
    operations = [row for row in rows if (row["queue_id"], row["queue_offset"]) in places]
    return sorted(operations, key=itemgetter("queue_id", "queue_offset"))


def _first_ms(halves: list[Row], newest: Plan | None) -> int:
    """Returns the time of the first operation that could name a half and still count.

    One that came long before its half waited for it; it left an outcome or a conflict, unless it
    waits for a set since. It can be stored a little earlier than its half: brokers' clocks differ.
    """
    first = int(min(half["stored_at"] for half in halves))
    if not any(map(set_key, halves)):
        return first - CLOCKS_APART_MS
    return first - max(plan_parameters(newest).orphan_operation_ttl_ms, CLOCKS_APART_MS)


def _naming_offsets(lake: Lake, halves: list[Row], ends: list[Row], first: pa.Scalar) -> list[int]:
    """Returns the op offsets of one queue that name its halves."""
    queue_id = halves[0]["queue_id"]
    ended = {end["queue_offset"] for end in ends}
    is_ended = all(half["queue_offset"] in ended or half["error"] for half in halves)
    last = max((end["decided_at"] for end in ends), default=halves[-1]["stored_at"])

    bounds: Bounds = {
        "queue_id": [queue_id],
        "stored_at": (first, _instant(last + _AFTER_END_MS) if is_ended else None),
    }
    rows = read_rows(lake, "op", ["queue_offset", "half_offsets"], bounds).combine_chunks()

    offsets = pc.list_flatten(rows["half_offsets"])
    is_named = pc.is_in(offsets, pa.array(half["queue_offset"] for half in halves))
    parents = pc.list_parent_indices(rows["half_offsets"]).filter(is_named)
    named: list[int] = rows["queue_offset"].take(pc.unique(parents)).to_pylist()
    return named


def _instant(ms: int) -> pa.Scalar:
    return pa.scalar(ms, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
