"""What stands in TRANS_CHECK_MAX_TIME_TOPIC and TRANS_UNDELIVERABLE_TOPIC and nobody has ended.

A discarded half is dead until it is ended late, or re-armed; one that is given up again after a
re-arm is dead again, with its one copy. An undeliverable message is dead until it is delivered.
Read at the newest committed epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DISCARDED, UNDELIVERABLE
from checker.sql import run
from pipelines.explain.rows import Row, is_in_set, newest_epochs, plain
from pipelines.explain.target import plain_target
from storage.lake import Lake
from storage.pruned import Bounds, read_pruned
from storage.whole import require_readable
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

_OWN_TOPICS = (CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC)
COLUMNS: Final = (
    "target", "real_topic", "producer_group", "transaction_id", "keys", "reason", "since",
)  # fmt: skip
_OUTCOME_COLUMNS = [
    "queue_id", "queue_offset", "arm", "outcome", "cause", "decided_at", "epoch",
    "producer_group", "transaction_id", "real_topic",
]  # fmt: skip
_UNDELIVERABLE_COLUMNS = [
    "queue_offset", "stored_at", "source", "half_queue_id", "half_queue_offset",
    "producer_group", "transaction_id", "real_topic", "asked_queue_id", "reason", "keys",
]  # fmt: skip
_COORDINATES = pa.schema(
    [("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("epoch", pa.int64())]
)

# Of a half's discards the last counts; `rearmed` and any other outcome undo those before them.
_HALVES = """
WITH last AS (
  SELECT * FROM outcomes WHERE outcome = 'DISCARDED'
  QUALIFY row_number() OVER (PARTITION BY queue_id, queue_offset ORDER BY epoch DESC) = 1
)
SELECT 'half:' || d.queue_id || '-' || d.queue_offset AS target, d.real_topic, d.producer_group,
  d.transaction_id, c.keys, d.cause AS reason, d.decided_at AS since
FROM last d
LEFT JOIN copies c ON d.queue_id = c.half_queue_id AND d.queue_offset = c.half_queue_offset
ANTI JOIN (SELECT * FROM outcomes WHERE outcome <> 'DISCARDED') e
  ON d.queue_id = e.queue_id AND d.queue_offset = e.queue_offset
ANTI JOIN rearmed r
  ON d.queue_id = r.queue_id AND d.queue_offset = r.queue_offset AND d.epoch < r.epoch
ORDER BY d.decided_at, d.queue_id, d.queue_offset
"""

_MESSAGES = """
SELECT 'undeliverable:' || m.queue_offset AS target, m.real_topic, m.producer_group,
  m.transaction_id, m.keys, m.reason, m.stored_at AS since
FROM messages m ANTI JOIN delivered d ON m.source = d.source
  AND m.half_queue_id = d.queue_id AND m.half_queue_offset = d.queue_offset
ORDER BY m.queue_offset
"""


def dead_halves(outcomes: pa.Table, copies: pa.Table, rearmed: pa.Table) -> pa.Table:
    """Return the discarded halves that are neither ended nor pending again, oldest first.

    Input: outcomes of halves that were discarded once; copies: half_queue_id, half_queue_offset,
    keys; rearmed: queue_id, queue_offset, epoch of every re-arm of a half.
    Output: COLUMNS.
    """
    return run(_HALVES, outcomes=outcomes, copies=copies, rearmed=rearmed)


def dead_messages(messages: pa.Table, delivered: pa.Table) -> pa.Table:
    """Return the undeliverable messages that were not delivered since, oldest first.

    Output: COLUMNS.
    """
    return run(_MESSAGES, messages=messages, delivered=delivered)


def read_dead(lake: Lake) -> list[Row]:
    """Read all that is dead: halves, then messages. Output: COLUMNS; `since` in ms.

    Errors: BrokenLakeError.
    """
    epoch, _ = newest_epochs(lake)
    tables = _tables(lake, epoch)
    require_readable(lake, [tables[topic] for topic in _OWN_TOPICS if topic in tables])
    rows: list[Row] = []
    if CHECK_MAX_TOPIC in tables:
        rows += plain(_read_halves(lake, tables[CHECK_MAX_TOPIC], epoch))
    if UNDELIVERABLE_TOPIC in tables:
        until: Bounds = {"epoch": (None, epoch)}
        messages = read_pruned(lake, tables[UNDELIVERABLE_TOPIC], _UNDELIVERABLE_COLUMNS, until)
        rows += plain(dead_messages(messages, _delivered(lake, until)))
    return rows


def _tables(lake: Lake, epoch: int) -> Mapping[str, str]:
    """Return the tables of topics; of an epoch that is not committed they may not be made yet."""
    until: Bounds = {"epoch": (None, epoch)}
    rows = read_pruned(lake, "catalog", ["topic", "table_id"], until).to_pylist()
    return {row["topic"]: f"topics/{row['table_id']}" for row in rows}


def _delivered(lake: Lake, bounds: Bounds) -> pa.Table:
    columns = ["source", "queue_id", "queue_offset"]
    return read_pruned(lake, "deliveries", columns, bounds, pc.field("action") == "DELIVERED")


def _read_halves(lake: Lake, copies_table: str, epoch: int) -> pa.Table:
    until: Bounds = {"epoch": (None, epoch)}
    # After a discard an end has this cause, or belongs to a later arm.
    is_about_discards = (
        (pc.field("outcome") == DISCARDED)
        | (pc.field("cause") == "late_end")
        | (pc.field("arm") > 0)
    )
    outcomes = read_pruned(lake, "outcomes", _OUTCOME_COLUMNS, until, is_about_discards)
    columns = ["half_queue_id", "half_queue_offset", "keys"]
    copies = read_pruned(lake, copies_table, columns, until)
    return dead_halves(outcomes, copies, _rearmed(lake, until))


def _rearmed(lake: Lake, until: Bounds) -> pa.Table:
    """Return every half that was re-armed: the one that was named, and its whole set."""
    where = pc.field("result") == "rearmed"
    commands = read_pruned(lake, "admin", ["target", "epoch"], until, where).to_pylist()
    named = []
    for command in commands:
        queue, _, offset = plain_target(command["target"]).removeprefix("half:").partition("-")
        named.append((int(queue), int(offset), command["epoch"]))
    bounds: Bounds = {"queue_offset": sorted({offset for _, offset, _ in named})}
    columns = ["queue_id", "queue_offset", "producer_group", "transaction_id", "tran_size",
               "error"]  # fmt: skip
    halves = {
        (half["queue_id"], half["queue_offset"]): half
        for half in read_pruned(lake, "half", columns, bounds).to_pylist()
    }
    of_sets = [halves[(q, o)] for q, o, _ in named if is_in_set(halves[(q, o)])]
    ids: Bounds = {"transaction_id": sorted({half["transaction_id"] for half in of_sets})}
    members = read_pruned(lake, "half", columns, ids).to_pylist()
    rows = []
    for queue_id, queue_offset, epoch in named:
        rows.append({"queue_id": queue_id, "queue_offset": queue_offset, "epoch": epoch})
        half = halves[(queue_id, queue_offset)]
        rows += [
            {"queue_id": queue_id, "queue_offset": member["queue_offset"], "epoch": epoch}
            for member in members
            if is_in_set(half) and is_in_set(member) and _set_of(member) == _set_of(half)
        ]
    return pa.Table.from_pylist(rows, schema=_COORDINATES)


def _set_of(half: Row) -> tuple[object, ...]:
    return tuple(half[c] for c in ("queue_id", "producer_group", "transaction_id", "tran_size"))


def undeliverable_at(lake: Lake, queue_offset: int) -> tuple[list[Row], bool]:
    """Look up one offset of TRANS_UNDELIVERABLE_TOPIC.

    Output: rows of `checker.frames.UNDELIVERABLE`, and whether it was delivered since.
    """
    epoch, _ = newest_epochs(lake)
    tables = _tables(lake, epoch)
    if UNDELIVERABLE_TOPIC not in tables:
        return [], False
    require_readable(lake, [tables[UNDELIVERABLE_TOPIC]])
    bounds: Bounds = {"epoch": (None, epoch), "queue_offset": [queue_offset]}
    found = read_pruned(lake, tables[UNDELIVERABLE_TOPIC], _UNDELIVERABLE_COLUMNS, bounds)
    rows = [
        {
            "undeliverable_offset": row["queue_offset"],
            "source": row["source"],
            "queue_id": row["half_queue_id"],
            "queue_offset": row["half_queue_offset"],
            "real_topic": row["real_topic"],
            "real_queue_id": row["asked_queue_id"],
        }
        for row in found.to_pylist()
    ]
    assert not rows or set(rows[0]) == set(UNDELIVERABLE.names)
    if not rows:
        return [], False
    place: Bounds = {
        "queue_id": [rows[0]["queue_id"]],
        "queue_offset": [rows[0]["queue_offset"]],
        "epoch": (None, epoch),
    }
    delivered = _delivered(lake, place).to_pylist()
    return rows, any(row["source"] == rows[0]["source"] for row in delivered)
