"""The frames and values that the decision takes and returns.

Instants are milliseconds since 1970 (int64) everywhere in `checker`; `storage` turns them into
timestamps at rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from txlake.protocol import CHECK_TOPIC_PREFIX

_INT, _LONG, _TEXT, _BOOL = pa.int32(), pa.int64(), pa.string(), pa.bool_()

RULE_VERSION: Final = 5  # raised whenever a change of the rules decides the same input differently

COMMITTED: Final = "COMMITTED"
ROLLED_BACK: Final = "ROLLED_BACK"
DISCARDED: Final = "DISCARDED"
UNREADABLE: Final = "UNREADABLE"

_MEMBER = [
    ("queue_id", _INT),
    ("queue_offset", _LONG),
    ("producer_group", _TEXT),
    ("transaction_id", _TEXT),
    ("tran_size", _INT),
    ("tran_seq", _INT),
]
_TOWARDS = [("real_topic", _TEXT), ("real_queue_id", _INT)]
_ROUTING = [*_TOWARDS, ("delay_level", _INT), ("delay_ms", _LONG), ("deliver_at", _LONG)]
# A record of the half topic that this epoch lands; `error` says why it cannot be read.
NEW_HALVES: Final = pa.schema(
    [
        *_MEMBER,
        ("stored_at", _LONG),
        *_ROUTING,
        ("immunity_ms", _LONG),
        ("error", _TEXT),
    ]
)
# A half that can still be ended. `unit_offset`: of the first landed half of its set, or its own;
# `age_from_at`: the instant from which its age counts; `deadline_at`: until when a producer's own
# end of its unit counts (`rules/deadline.py`).
HALVES: Final = pa.schema(
    [
        *_MEMBER,
        ("unit_offset", _LONG),
        ("arm", _INT),
        ("stored_at", _LONG),
        ("age_from_at", _LONG),
        *_ROUTING,
        ("immunity_ms", _LONG),
        ("deadline_at", _LONG),
        ("check_times", _INT),
        ("unacknowledged", _INT),
        ("checked_at", _LONG),
        ("last_answer_at", _LONG),
        ("discard_cause", _TEXT),
        ("discards", _INT),
    ]
)
# A half of an earlier epoch that this epoch's input names, and that was ended or cannot be read.
ENDED: Final = pa.schema(
    [
        *_MEMBER,
        ("stored_at", _LONG),
        ("immunity_ms", _LONG),
        ("status", _TEXT),
        ("cause", _TEXT),
        ("op_queue_offset", _LONG),
        ("arm", _INT),
    ]
)
# A record of the op topic that this epoch lands. `is_signed`: null if its group had no key then.
OPERATIONS: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("op_queue_offset", _LONG),
        ("stored_at", _LONG),
        ("producer_group", _TEXT),
        ("decision", _TEXT),
        ("half_offsets", pa.list_(_LONG)),
        ("transaction_ids", pa.list_(_TEXT)),
        ("cause", _TEXT),
        ("error", _TEXT),
        ("is_signed", _BOOL),
    ]
)
# One half named by one operation. `decided_sets`: the sets, by name, for which its operation is
# decided already; it stands at the operation's first position whose half is still to come.
NAMINGS: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("op_queue_offset", _LONG),
        ("position", _INT),
        ("half_queue_offset", _LONG),
        ("decision", _TEXT),
        ("producer_group", _TEXT),
        ("transaction_id", _TEXT),
        ("cause", _TEXT),
        ("stored_at", _LONG),
        ("landed_at", _LONG),
        ("decided_sets", pa.list_(_TEXT)),
        ("is_signed", _BOOL),
    ]
)
# A queue: `known_at` of its operations now and in the epoch before, of its halves, where landing
# stands, and its floor.
QUEUES: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("known_at", _LONG),
        ("earlier_known_at", _LONG),
        ("halves_known_at", _LONG),
        ("half_end", _LONG),
        ("floor", _LONG),
    ]
)
# A record of the schedule topic that this epoch lands.
NEW_SCHEDULES: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("stored_at", _LONG),
        ("producer_group", _TEXT),
        *_ROUTING,
        ("error", _TEXT),
    ]
)
DELAYED: Final = pa.schema(
    [
        ("source", _TEXT),
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("deliver_at", _LONG),
        *_TOWARDS,
        ("producer_group", _TEXT),
    ]
)
# A message in TRANS_UNDELIVERABLE_TOPIC; `source` and the place say where its body is.
UNDELIVERABLE: Final = pa.schema(
    [
        ("undeliverable_offset", _LONG),
        ("source", _TEXT),
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        *_TOWARDS,
        ("producer_group", _TEXT),
    ]
)
COMMANDS: Final = pa.schema(
    [("admin_offset", _LONG), ("command", _TEXT), ("target", _TEXT), ("error", _TEXT)]
)
# `producer_group`: whose message made the topic; null if an operator or we did.
TOPICS: Final = pa.schema(
    [("topic", _TEXT), ("table_id", _LONG), ("queue_count", _INT), ("producer_group", _TEXT)]
)
NEXT_OFFSETS: Final = pa.schema([("topic", _TEXT), ("queue_id", _INT), ("next_offset", _LONG)])

OUTCOMES: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("arm", _INT),
        ("outcome", _TEXT),
        ("cause", _TEXT),
        ("op_queue_offset", _LONG),
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
    ]
)
# A check to send: one for a unit. `half_offsets`: the offsets of the unit's halves in order.
DUE: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("arm", _INT),
        ("check_times", _INT),
        ("producer_group", _TEXT),
        ("transaction_id", _TEXT),
        ("real_topic", _TEXT),
        ("half_offsets", pa.list_(_LONG)),
    ]
)
# A check that was handed to Kafka. `acknowledged`: whether Kafka said that it has it.
ATTEMPTS: Final = pa.schema(
    [
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("arm", _INT),
        ("check_times", _INT),
        ("check_id", _TEXT),
        ("producer_group", _TEXT),
        ("acknowledged", _BOOL),
    ]
)
# A row for a topic table; `source` and the place say where its body is.
PLACEMENTS: Final = pa.schema(
    [
        ("topic", _TEXT),
        ("real_queue_id", _INT),
        ("real_queue_offset", _LONG),
        ("source", _TEXT),
        ("queue_id", _INT),
        ("queue_offset", _LONG),
        ("real_topic", _TEXT),
        ("asked_queue_id", _INT),
        ("reason", _TEXT),
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
    ]
)
COMMAND_RESULTS: Final = pa.schema([("admin_offset", _LONG), ("result", _TEXT)])


@dataclass(frozen=True)
class Parameters:
    """The parameters of the rules in force at an epoch; its plan records them. Units: ms.

    A default stands for a parameter that an older plan lacks: that plan's outcomes stay.
    """

    transaction_timeout_ms: int = 6_000
    check_interval_ms: int = 30_000
    check_max: int = 15
    half_retention_ms: int = 259_200_000
    check_rate_max: int = 50_000
    late_end_policy: str = "apply"
    orphan_operation_ttl_ms: int = 3_600_000
    require_transaction_id: bool = False
    reject_after_immunity: bool = False
    auto_create_topics: bool = True
    default_queue_count: int = 4
    topics_max: int = 1_000
    group_topics_max: int = 1_000_000  # as in plans of rule version 3, which have no such limit
    delay_levels_ms: tuple[int, ...] = (1_000,)
    deliver_at_max_ms: int = 2_592_000_000
    deliver_at_goes_first: bool = False  # up to rule version 4 a level went before DELIVER_AT
    due_at_max: int = 253_402_300_799_999  # as up to rule version 4, whose instants ended later
    ages_from_known_at: bool = False  # as in plans before rule version 5: ages from `stored_at`
    own_topics: tuple[str, ...] = ()
    check_topic_prefix: str = CHECK_TOPIC_PREFIX


@dataclass(frozen=True)
class State:
    """The state before an epoch, from earlier epochs only."""

    halves: pa.Table = field(default_factory=HALVES.empty_table)
    waiting: pa.Table = field(default_factory=NAMINGS.empty_table)
    delayed: pa.Table = field(default_factory=DELAYED.empty_table)
    topics: pa.Table = field(default_factory=TOPICS.empty_table)
    next_offsets: pa.Table = field(default_factory=NEXT_OFFSETS.empty_table)


# The columns that name a row of each frame of the state that changes row by row.
STATE_KEYS: Final = {
    "halves": ("queue_id", "queue_offset"),
    "waiting": ("queue_id", "op_queue_offset", "position"),
    "delayed": ("source", "queue_id", "queue_offset"),
}


@dataclass(frozen=True)
class Change:
    """The changes of an epoch in one frame of the state.

    `put`: rows that came in or changed, whole. `left`: the keys (STATE_KEYS) of rows that are gone.
    """

    put: pa.Table
    left: pa.Table


@dataclass(frozen=True)
class Inputs:
    """The records that an epoch lands, and the rows of earlier epochs that it looked up."""

    halves: pa.Table = field(default_factory=NEW_HALVES.empty_table)
    operations: pa.Table = field(default_factory=OPERATIONS.empty_table)
    schedules: pa.Table = field(default_factory=NEW_SCHEDULES.empty_table)
    commands: pa.Table = field(default_factory=COMMANDS.empty_table)
    ended: pa.Table = field(default_factory=ENDED.empty_table)
    undeliverable: pa.Table = field(default_factory=UNDELIVERABLE.empty_table)


@dataclass(frozen=True)
class Instants:
    """`epoch_at`, and how far each queue is known (frame QUEUES)."""

    epoch_at: int
    queues: pa.Table = field(default_factory=QUEUES.empty_table)


@dataclass(frozen=True)
class Decision:
    """The decision of an epoch, as frames.

    `state`: after the epoch; `changes`: the changes of the state, by the frame's name in State.
    `timing.record_attempts` adds the attempts to ask to both.
    """

    outcomes: pa.Table
    conflicts: pa.Table
    due: pa.Table
    delayed: pa.Table
    deliveries: pa.Table
    placements: pa.Table
    new_topics: pa.Table
    command_results: pa.Table
    state: State
    changes: Mapping[str, Change] = field(default_factory=dict)
