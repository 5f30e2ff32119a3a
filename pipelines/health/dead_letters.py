"""Discarded halves and undeliverable messages that were not ended or delivered since.

A discarded half is dead until it is ended late, or re-armed, or the floor passes it; one that is
given up again after a re-arm is dead again, with its one copy. An undeliverable message is dead
until it is delivered. Read at the newest committed epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DISCARDED
from checker.frames_ops.sql import run
from pipelines.explain.rows import Row, latest_committed, set_key, to_dicts
from pipelines.health.transactions import state_of
from storage.lake.integrity import require_readable
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.wire.record_kinds import HALF
from txlake.protocol import (
    CHECK_MAX_TOPIC,
    UNDELIVERABLE_TOPIC,
    RecordTarget,
    UndeliverableTarget,
    read_target,
)

_OWN_TOPICS = (CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC)
COLUMNS: Final = (
    "target",
    "real_topic",
    "producer_group",
    "transaction_id",
    "keys",
    "reason",
    "since",
)
_DISCARD = ["queue_id", "queue_offset", "decided_at", "epoch"]
_UNDELIVERABLE_COLUMNS = [
    "queue_offset",
    "stored_at",
    "source",
    "half_queue_id",
    "half_queue_offset",
    "producer_group",
    "transaction_id",
    "real_topic",
    "reason",
    "keys",
]
_REARMED = pa.schema(
    [("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("epoch", pa.int64())]
)

# The reason is the cause of its last discard.
_HALVES = """
WITH last AS (
  SELECT * FROM discards
  QUALIFY row_number() OVER (PARTITION BY queue_id, queue_offset ORDER BY epoch DESC) = 1
)
SELECT s.queue_id, s.queue_offset, s.real_topic, s.producer_group, s.transaction_id, h.keys,
  s.discard_cause AS reason, d.decided_at AS since
FROM dead s
LEFT JOIN last d ON s.queue_id = d.queue_id AND s.queue_offset = d.queue_offset
LEFT JOIN records h ON s.queue_id = h.queue_id AND s.queue_offset = h.queue_offset
ORDER BY d.decided_at, s.queue_id, s.queue_offset
"""

_MESSAGES = """
SELECT m.queue_offset, m.real_topic, m.producer_group, m.transaction_id, m.keys, m.reason,
  m.stored_at AS since
FROM messages m ANTI JOIN delivered d ON m.source = d.source
  AND m.half_queue_id = d.queue_id AND m.half_queue_offset = d.queue_offset
ORDER BY m.queue_offset
"""


def read_dead(lake: Lake, topic: str | None = None, group: str | None = None) -> list[Row]:
    """Returns all dead letters: halves, then messages, the oldest first. Output: COLUMNS; ms.

    Input: the real topic and the producer group to choose, if any.
    Errors: BrokenLakeError.
    """
    epoch, _ = latest_committed(lake)
    tables = _tables(lake, epoch)
    require_readable(lake, [tables[own] for own in _OWN_TOPICS if own in tables])

    until: Bounds = {"epoch": (None, epoch)}
    rows: list[Row] = []

    if CHECK_MAX_TOPIC in tables:  # it was made for the first half that was given up
        rows += [
            {**row, "target": str(RecordTarget(HALF, row["queue_id"], row["queue_offset"]))}
            for row in to_dicts(_halves(lake, epoch))
        ]

    if UNDELIVERABLE_TOPIC in tables:
        rows += [
            {**row, "target": str(UndeliverableTarget(row["queue_offset"]))}
            for row in to_dicts(_messages(lake, tables[UNDELIVERABLE_TOPIC], until))
        ]

    return [
        {name: row[name] for name in COLUMNS}
        for row in rows
        if topic in (None, row["real_topic"]) and group in (None, row["producer_group"])
    ]


def _tables(lake: Lake, epoch: int) -> dict[str, str]:
    """Returns the tables of the topics that a committed epoch made."""
    rows = read_rows(lake, "catalog", ["topic", "table_id"], {"epoch": (None, epoch)}).to_pylist()
    return {row["topic"]: f"topics/{row['table_id']}" for row in rows}


def count_undeliverable(lake: Lake) -> int:
    """Returns how many undeliverable messages wait for an operator."""
    epoch, _ = latest_committed(lake)
    table = _tables(lake, epoch).get(UNDELIVERABLE_TOPIC)
    if table is None:
        return 0

    require_readable(lake, [table])
    return int(_messages(lake, table, {"epoch": (None, epoch)}).num_rows)


def _messages(lake: Lake, table: str, until: Bounds) -> pa.Table:
    """Returns the undeliverable messages that were not delivered since."""
    messages = read_rows(lake, table, _UNDELIVERABLE_COLUMNS, until)

    # `deliveries` has a row for each message that was ever delayed: read only those of these.
    since: Bounds = {
        **until,
        "queue_offset": sorted(set(messages["half_queue_offset"].to_pylist())),
    }

    columns = ["source", "queue_id", "queue_offset"]
    is_delivered = pc.field("action") == "DELIVERED"
    delivered = read_rows(lake, "deliveries", columns, since, is_delivered)
    return run(_MESSAGES, messages=messages, delivered=delivered)


def _halves(lake: Lake, epoch: int) -> pa.Table:
    """Returns the discarded halves of the state, which can still be ended or re-armed."""
    state = state_of(lake, epoch)
    dead = state.filter(pc.is_valid(state["discard_cause"]))
    offsets = sorted(set(dead["queue_offset"].to_pylist()))

    bounds: Bounds = {"epoch": (None, epoch), "queue_offset": offsets}

    is_discard = pc.field("outcome") == DISCARDED
    discards = read_rows(lake, "outcomes", _DISCARD, bounds, is_discard)

    # Its copy in TRANS_CHECK_MAX_TIME_TOPIC goes sooner: that topic keeps messages for some time.
    records = read_rows(lake, HALF, ["queue_id", "queue_offset", "keys"], bounds)
    return run(_HALVES, dead=dead, discards=discards, records=records)


def read_rearmed(lake: Lake, until: Bounds) -> pa.Table:
    """Returns every half that was re-armed: the half that a command named, and its whole set.

    A half can be deleted sooner than the row of its command: its set is not known any more.
    Input: the epochs. Output: queue_id, queue_offset, epoch.
    """
    is_rearmed = pc.field("result") == "rearmed"
    commands = read_rows(lake, "admin", ["target", "epoch"], until, is_rearmed).to_pylist()
    targets = [(read_target(command["target"]), command["epoch"]) for command in commands]
    named = [
        (target.queue_id, target.queue_offset, epoch)
        for target, epoch in targets
        if isinstance(target, RecordTarget)
    ]
    places = {(queue_id, queue_offset) for queue_id, queue_offset, _ in named}

    bounds: Bounds = {"queue_offset": sorted({offset for _, offset in places})}
    columns = ["queue_id", "queue_offset", "producer_group", "transaction_id", "tran_size", "error"]
    records = read_rows(lake, "half", columns, bounds).to_pylist()
    halves = {(half["queue_id"], half["queue_offset"]): half for half in records}

    present = [halves[place] for place in places & halves.keys()]
    ids = {half["transaction_id"] for half in present if set_key(half)}
    members = read_rows(lake, "half", columns, {"transaction_id": sorted(ids)}).to_pylist()

    offsets_by_set: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for member in members:
        offsets_by_set[set_key(member)].append(member["queue_offset"])

    rows = []
    for queue_id, queue_offset, epoch in named:
        half = halves.get((queue_id, queue_offset))
        key = set_key(half) if half is not None else ()
        offsets = offsets_by_set.get(key) if key else None

        rows += [
            {"queue_id": queue_id, "queue_offset": offset, "epoch": epoch}
            for offset in offsets or [queue_offset]
        ]

    return pa.Table.from_pylist(rows, schema=_REARMED)


def undeliverable_offsets(lake: Lake, offsets: Collection[int]) -> set[int]:
    """Returns which of some offsets of TRANS_UNDELIVERABLE_TOPIC have a message.

    Errors: BrokenLakeError.
    """
    epoch, _ = latest_committed(lake)
    table = _tables(lake, epoch).get(UNDELIVERABLE_TOPIC)
    if table is None or not offsets:
        return set()

    require_readable(lake, [table])
    bounds: Bounds = {"epoch": (None, epoch), "queue_offset": sorted(offsets)}
    return set(read_rows(lake, table, ["queue_offset"], bounds)["queue_offset"].to_pylist())
