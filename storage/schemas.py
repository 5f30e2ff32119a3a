"""Every table's schema, in Arrow terms, and the place of a row as one number.

Names and types are an interface: notebooks and other readers use them. Instants are UTC
microseconds at rest and end in `_at`; spans say their unit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txlake import _committed

FORMAT_VERSION: Final = 5
DIGEST_FORMAT: Final = _committed.DIGEST_FORMAT  # from this one on epochs tell what tables hold
SIGNED_FORMAT: Final = 3  # from this one on operations say whether they are signed
GROUPS_FORMAT: Final = 4  # from this one on `catalog` and `delayed` name producer groups
THIRD_EDITION_FORMAT: Final = 5  # from this one on: ages, deadlines, spans, sets decided once
FORMATS: Final = tuple(range(1, FORMAT_VERSION + 1))  # of lakes that can be checked and rebuilt
_OFFSET_BITS = 44  # of a place as one number: the queue stands above them

_INT, _LONG, _TEXT, _BYTES, _BOOL = pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.bool_()
_INSTANT = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", _TEXT), ("value", _BYTES)]))
_PROPERTIES = pa.map_(_TEXT, _TEXT)

# A record's place in its Kafka topic, and the epoch that landed it.
_PLACE = [("queue_id", _INT), ("queue_offset", _LONG), ("stored_at", _INSTANT), ("epoch", _LONG)]
_RAW = [("error", _TEXT), ("raw_key", _BYTES), ("raw_headers", HEADERS)]
_MESSAGE = [
    ("producer_group", _TEXT),
    ("transaction_id", _TEXT),
    ("real_topic", _TEXT),
    ("real_queue_id", _INT),
    ("keys", _TEXT),
    ("tags", _TEXT),
    ("delay_level", _INT),
    ("delay_ms", _LONG),
    ("deliver_at", _INSTANT),
    ("immunity_ms", _LONG),
    ("tran_size", _INT),
    ("tran_seq", _INT),
    ("born_at", _INSTANT),
    ("properties", _PROPERTIES),
    ("body", _BYTES),
]

HALF: Final = pa.schema([*_PLACE, *_MESSAGE, *_RAW])
SCHEDULE: Final = HALF
OP: Final = pa.schema(
    [
        *_PLACE,
        ("producer_group", _TEXT),
        ("decision", _TEXT),
        ("half_offsets", pa.list_(_LONG)),
        ("transaction_ids", pa.list_(_TEXT)),
        ("from_check", _BOOL),
        ("check_id", _TEXT),
        ("remark", _TEXT),
        ("actor", _TEXT),
        ("reason", _TEXT),
        ("signature", _TEXT),
        ("is_signed", _BOOL),
        ("body", _BYTES),
        *_RAW,
    ]
)
ADMIN: Final = pa.schema(
    [
        *_PLACE,
        ("command", _TEXT),
        ("target", _TEXT),
        ("actor", _TEXT),
        ("reason", _TEXT),
        ("result", _TEXT),
        ("body", _BYTES),
        *_RAW,
    ]
)
# The tables of the state: `change` says what a row is.
PUT, LEFT, SNAPSHOT = "put", "left", "snapshot"
STATE_TABLES: Final = ("pending", "waiting", "delayed")
DELAYED: Final = pa.schema(
    [
        ("change", _TEXT),
        ("source", _TEXT),
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("deliver_at", _INSTANT),
        ("real_topic", _TEXT),
        ("real_queue_id", _INT),
        ("producer_group", _TEXT),
        ("epoch", _LONG),
    ]
)
DELIVERIES: Final = pa.schema(
    [
        ("source", _TEXT),
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("action", _TEXT),
        ("real_topic", _TEXT),
        ("real_queue_id", _INT),
        ("real_queue_offset", _LONG),
        ("admin_offset", _LONG),
        ("decided_at", _INSTANT),
        ("epoch", _LONG),
    ]
)
_RANGE = pa.struct(
    [
        ("topic", _TEXT),
        ("partition", _INT),
        ("from_offset", _LONG),
        ("to_offset", _LONG),
        ("end_offset", _LONG),
        ("asked_end_offset", _LONG),
    ]
)
_TABLE_AT = pa.struct([("table", _TEXT), ("version", _LONG), ("rows", _LONG)])
_QUEUE_STATE = pa.struct([("topic", _TEXT), ("queue_id", _INT), ("next_offset", _LONG)])
EPOCHS: Final = pa.schema(
    [
        ("epoch", _LONG),
        ("state", _TEXT),
        ("epoch_at", _INSTANT),
        ("known_at", pa.map_(_INT, _INSTANT)),
        ("halves_known_at", pa.map_(_INT, _INSTANT)),
        ("asked_at", _INSTANT),
        ("ranges", pa.list_(_RANGE)),
        ("cluster_id", _TEXT),
        ("topic_ids", pa.map_(_TEXT, _TEXT)),
        ("next_offsets", pa.list_(_QUEUE_STATE)),
        ("parameters", pa.map_(_TEXT, _TEXT)),
        ("owner", _TEXT),
        ("rule_version", _INT),
        ("counts", pa.map_(_TEXT, _LONG)),
        ("step_ms", pa.map_(_TEXT, _LONG)),
        ("work", pa.map_(_TEXT, _LONG)),
        ("tables", pa.list_(_TABLE_AT)),
        ("digest", _TEXT),
        ("written_at", _INSTANT),
    ]
)
OUTCOMES: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("arm", _INT),
        ("outcome", _TEXT),
        ("cause", _TEXT),
        ("op_queue_offset", _LONG),
        ("decided_at", _INSTANT),
        ("epoch", _LONG),
        ("producer_group", _TEXT),
        ("transaction_id", _TEXT),
        ("real_topic", _TEXT),
        ("real_queue_id", _INT),
        ("real_queue_offset", _LONG),
    ]
)
CONFLICTS: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("op_queue_offset", _LONG),
        ("half_queue_offset", _LONG),
        ("reason", _TEXT),
        ("decided_at", _INSTANT),
        ("epoch", _LONG),
    ]
)
CHECKS: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("arm", _INT),
        ("check_times", _INT),
        ("check_id", _TEXT),
        ("producer_group", _TEXT),
        ("sent_at", _INSTANT),
        ("acknowledged", _BOOL),
        ("epoch", _LONG),
    ]
)
PENDING: Final = pa.schema(
    [
        ("change", _TEXT),
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("unit_offset", _LONG),
        ("arm", _INT),
        ("stored_at", _INSTANT),
        ("age_from_at", _INSTANT),
        ("producer_group", _TEXT),
        ("transaction_id", _TEXT),
        ("tran_size", _INT),
        ("tran_seq", _INT),
        ("real_topic", _TEXT),
        ("real_queue_id", _INT),
        ("delay_level", _INT),
        ("delay_ms", _LONG),
        ("deliver_at", _INSTANT),
        ("immunity_ms", _LONG),
        ("deadline_at", _INSTANT),
        ("check_times", _INT),
        ("unacknowledged", _INT),
        ("checked_at", _INSTANT),
        ("last_answer_at", _INSTANT),
        ("discard_cause", _TEXT),
        ("discards", _INT),
        ("epoch", _LONG),
    ]
)
# An operation that names a half and has neither ended it nor become a conflict yet.
WAITING: Final = pa.schema(
    [
        ("change", _TEXT),
        ("queue_id", _INT),
        ("op_queue_offset", _LONG),
        ("position", _INT),
        ("half_queue_offset", _LONG),
        ("decision", _TEXT),
        ("producer_group", _TEXT),
        ("transaction_id", _TEXT),
        ("cause", _TEXT),
        ("stored_at", _INSTANT),
        ("landed_at", _INSTANT),
        ("decided_sets", pa.list_(_TEXT)),
        ("is_signed", _BOOL),
        ("epoch", _LONG),
    ]
)
TOPIC: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("stored_at", _INSTANT),
        ("source", _TEXT),
        ("born_at", _INSTANT),
        ("producer_group", _TEXT),
        ("transaction_id", _TEXT),
        ("real_topic", _TEXT),
        ("asked_queue_id", _INT),
        ("reason", _TEXT),
        ("keys", _TEXT),
        ("tags", _TEXT),
        ("properties", _PROPERTIES),
        ("body", _BYTES),
        ("half_queue_id", _INT),
        ("half_queue_offset", _LONG),
        ("raw_headers", HEADERS),
        ("epoch", _LONG),
    ]
)
CATALOG: Final = pa.schema(
    [
        ("topic", _TEXT),
        ("table_id", _LONG),
        ("queue_count", _INT),
        ("producer_group", _TEXT),
        ("epoch", _LONG),
        ("created_at", _INSTANT),
    ]
)
LAKE: Final = pa.schema([("lake_id", _TEXT), ("format_version", _INT), ("created_at", _INSTANT)])

# What the SDK's consumers write, each table with its first row (docs/protocol/tables.md).
CONSUMER_OFFSETS: Final = "consumer_offsets"
CONSUMER_TABLES: Final = (
    CONSUMER_OFFSETS,
    "consumer_members",
    "consumer_retries",
    "consumer_dead_letters",
)

TABLES: Final = {
    "lake": LAKE,
    "half": HALF,
    "op": OP,
    "schedule": SCHEDULE,
    "admin": ADMIN,
    "delayed": DELAYED,
    "deliveries": DELIVERIES,
    "epochs": EPOCHS,
    "outcomes": OUTCOMES,
    "conflicts": CONFLICTS,
    "checks": CHECKS,
    "pending": PENDING,
    "waiting": WAITING,
    "catalog": CATALOG,
}


def row_keys(rows: pa.Table | pa.RecordBatch, offset: str = "queue_offset") -> Any:
    """Returns the queue and the offset of each row as one number; -1 if it has no offset.

    Input: `offset`: the column of the offset. Kafka's offsets stay far below 2^44 and partitions
    below 2^19. An operation can name any number as an offset: one beyond 2^44 gives -1, too.
    """
    queue_ids = _to_int64(rows["queue_id"])
    offsets = _to_int64(rows[offset])

    keys = pack_key(queue_ids, offsets)
    keys[(offsets >> _OFFSET_BITS) != 0] = -1
    return keys


def _to_int64(values: pa.Array | pa.ChunkedArray) -> Any:
    """Returns a column of integers as a numpy array, -1 for null."""
    return pc.fill_null(values, -1).to_numpy().astype(np.int64, copy=False)


def pack_key(queue_id: Any, queue_offset: Any) -> Any:
    """Returns a queue and an offset in it as one number; of arrays of both, an array."""
    return (queue_id << _OFFSET_BITS) | queue_offset
