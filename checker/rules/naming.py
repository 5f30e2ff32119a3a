"""Which half each operation names, and whether it can end it: tests 1 to 7 of an operation.

An operation names one half or several; each naming is a row.

Source: docs/protocol/rules.md "Which operation ends a half"; RocketMQ's
EndTransactionProcessor.checkPrepareMessage.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import NAMINGS, UNREADABLE, Parameters
from checker.frames_ops.columns import (
    Mask,
    Numbers,
    build_frame,
    case_when,
    equal_or_null,
    filter_rows,
    index_of,
    take,
    to_int64,
    to_mask,
)
from checker.frames_ops.sql import select
from checker.rules.deadline import deadlines, is_late
from checker.rules.decided_sets import decided_sets_after, is_absorbed
from checker.rules.presence import is_below
from checker.rules.sets import is_member, set_names
from storage.schemas import row_keys

VALID: Final = "valid"
WAITS: Final = "waits"
ABSORBED: Final = "absorbed"  # its operation is decided for this set at another position: no row

# The halves that have their set's status: duplicates, and members of sets that ended before.
_OF_SETS = """
SELECT m.queue_id, m.queue_offset, m.producer_group, m.transaction_id, m.tran_size,
  m.unit_offset, coalesce(u.status, 'PENDING') AS status, u.discard_cause, u.deadline_at
FROM members m JOIN units u ON m.queue_id = u.queue_id AND m.unit_offset = u.unit_offset
WHERE m.is_duplicate OR u.status IS NOT NULL
"""

# The columns of an operation that each of its namings has.
_OPERATION_COLUMNS = [
    "queue_id",
    "op_queue_offset",
    "stored_at",
    "producer_group",
    "decision",
    "cause",
    "is_signed",
]
# The columns of a named half that its verdict has.
_HALF_COLUMNS = ["unit_offset", "status", "discard_cause", "deadline_at"]

VERDICT_ROWS: Final = pa.schema(
    [
        *NAMINGS,
        ("unit_offset", pa.int64()),
        ("status", pa.string()),
        ("discard_cause", pa.string()),
        ("deadline_at", pa.int64()),
        ("set_name", pa.string()),
        ("verdict", pa.string()),
    ]
)
_NAMEABLE_ROWS = pa.schema(
    [
        NAMINGS.field("queue_id"),
        ("queue_offset", pa.int64()),
        NAMINGS.field("producer_group"),
        NAMINGS.field("transaction_id"),
        ("tran_size", pa.int32()),
        *(VERDICT_ROWS.field(name) for name in _HALF_COLUMNS),
    ]
)


def namings(operations: pa.Table, landed_at: int) -> pa.Table:
    """Returns one row for each half that each readable operation names.

    Input: OPERATIONS; `landed_at`: `epoch_at` of the epoch that lands them.
    Output: NAMINGS.
    """
    operations = filter_rows(operations, to_mask(pc.is_null(operations["error"])))

    halves = operations["half_offsets"]
    operation, position = _positions(halves)

    named = operations.select(_OPERATION_COLUMNS)
    if len(operation) != operations.num_rows or position.any():
        named = named.take(pa.array(operation))

    return build_frame(
        NAMINGS,
        named,
        position=pa.array(position.astype(np.int32)),
        half_queue_offset=pc.list_flatten(halves),
        transaction_id=_at_positions(operations["transaction_ids"], operation, position),
        landed_at=landed_at,
        decided_sets=None,
    )


def _positions(lists: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
    """Returns for each element of a column of lists its row, and its position in the row's list."""
    counts = to_int64(pc.list_value_length(lists), null=0)
    starts = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - starts[row]


def _at_positions(lists: pa.ChunkedArray, row: Numbers, position: Numbers) -> pa.ChunkedArray:
    """Returns the element at a position of a row's list; null where the list is shorter."""
    counts = to_int64(pc.list_value_length(lists), null=0)
    starts = np.cumsum(counts) - counts
    elements = pc.list_flatten(lists)

    at = np.where(position < counts[row], starts[row] + position, -1)
    if len(at) == len(elements) and (np.diff(at, prepend=-1) == 1).all():
        return elements
    return elements.take(pa.array(at, mask=at < 0))


def validate(
    namings: pa.Table,
    waiting_count: int,
    halves: pa.Table,
    new_halves: pa.Table,
    ended: pa.Table,
    members: pa.Table,
    units: pa.Table,
    queues: pa.Table,
    parameters: Parameters,
) -> pa.Table:
    """Returns the verdict of tests 2 to 7 on every naming.

    Tests 6 and 7 are made when the half is there for the first time: a naming that waits for its
    set since then has passed them.
    Input: NAMINGS, of which the first `waiting_count` are of earlier epochs.
    Output: NAMINGS, the unit it names, its status and its set's name (null: a half alone), and
    `verdict`: `valid`, `waits` (its half has not landed yet), `absorbed` (its operation is decided
    for this set at another position) or the reason of a conflict.
    """
    if namings.num_rows == 0:
        return VERDICT_ROWS.empty_table()

    nameable = _nameable_halves(halves, new_halves, ended, members, units)
    at = index_of(row_keys(namings, "half_queue_offset"), row_keys(nameable))
    named = take(nameable, at)
    named = named.append_column("set_name", set_names(named))
    is_ahead, is_orphan = _is_ahead_or_orphan(namings, queues, parameters.orphan_operation_ttl_ms)

    is_missing = at < 0
    is_first_time = ~_waits_for_set(namings, new_halves, waiting_count)

    is_nameless = is_first_time & parameters.require_transaction_id & lacks_id(namings)
    is_after_immunity = is_first_time & parameters.reject_after_immunity
    is_after_immunity &= is_late(namings, named["deadline_at"])

    verdict = case_when(
        [
            (is_missing & is_orphan, "orphan_expired"),
            (is_missing & is_ahead, WAITS),
            (is_missing & is_below(namings, queues, "half_queue_offset"), "below_floor"),
            (is_missing, "unknown_half"),
            (to_mask(pc.equal(named["status"], UNREADABLE)), "unreadable_half"),
            (is_absorbed(namings, named, new_halves), ABSORBED),
            (~_matches_half("producer_group", namings, named), "wrong_producer_group"),
            (to_mask(pc.invert(namings["is_signed"])), "bad_signature"),
            (is_nameless, "no_transaction_id"),
            (~_matches_half("transaction_id", namings, named), "wrong_transaction_id"),
            (is_after_immunity, "after_immunity"),
        ],
        VALID,
    )

    is_waiting = to_mask(pc.equal(verdict, WAITS))
    return build_frame(
        VERDICT_ROWS,
        namings,
        **{name: named[name] for name in (*_HALF_COLUMNS, "set_name")},
        decided_sets=decided_sets_after(namings, named["set_name"], is_waiting),
        verdict=verdict,
    )


def lacks_id(namings: pa.Table) -> Mask:
    """Returns for each naming whether it needs a transaction id and has none.

    An operator needs none: it might not know the transaction of the half. Input: NAMINGS.
    """
    is_producers = ~to_mask(pc.equal(namings["cause"], "operator"))
    return is_producers & to_mask(namings["transaction_id"].is_null())


def _waits_for_set(namings: pa.Table, new_halves: pa.Table, waiting_count: int) -> Mask:
    """Returns for each naming whether it is of an earlier epoch, and its half landed before, too.

    Input: `waiting_count`: the number of namings of earlier epochs; they are the first ones.
    """
    is_new = index_of(row_keys(namings, "half_queue_offset"), row_keys(new_halves)) >= 0
    return ~is_new & (np.arange(namings.num_rows) < waiting_count)


def can_take_effect(
    waiting: pa.Table, operations: pa.Table, queues: pa.Table, orphan_ttl_ms: int
) -> Mask:
    """Returns for each naming whether it can do anything in this epoch.

    Its half has landed, it has waited too long, or it can hold up the ROLLBACK of an incomplete
    set, which a ROLLBACK of its group has to name. The mask can mark more.

    Input: NAMINGS, OPERATIONS, QUEUES.
    """
    is_ahead, is_orphan = _is_ahead_or_orphan(waiting, queues, orphan_ttl_ms)
    can_act: Mask = ~is_ahead | is_orphan

    groups = [_rollback_groups(rows) for rows in (operations, filter_rows(waiting, can_act))]
    can_act |= to_mask(pc.is_in(waiting["producer_group"], pa.concat_arrays(groups)))

    return can_act


def _rollback_groups(rows: pa.Table) -> pa.Array:
    """Returns the producer groups of ROLLBACKs."""
    is_rollback = to_mask(pc.equal(rows["decision"], "ROLLBACK"))
    return pc.unique(filter_rows(rows, is_rollback)["producer_group"])


def has_orphan(waiting: pa.Table, queues: pa.Table, orphan_ttl_ms: int) -> bool:
    """Returns whether any naming has waited for its half too long. Input: NAMINGS, QUEUES."""
    _, is_orphan = _is_ahead_or_orphan(waiting, queues, orphan_ttl_ms)
    return bool(is_orphan.any())


def _is_ahead_or_orphan(
    namings: pa.Table, queues: pa.Table, orphan_ttl_ms: int
) -> tuple[Mask, Mask]:
    """Returns for each naming whether its half can still land, and whether it has waited too long.

    Source: docs/protocol/rules.md "Which operation ends a half", test 2.
    """
    queue = take(queues, index_of(to_int64(namings["queue_id"]), to_int64(queues["queue_id"])))
    is_ahead = to_int64(namings["half_queue_offset"]) >= to_int64(queue["half_end"], null=0)

    wait_ms = pc.subtract(queue["halves_known_at"], namings["landed_at"])
    is_orphan = is_ahead & to_mask(pc.greater(wait_ms, orphan_ttl_ms))

    return is_ahead, is_orphan


def _matches_half(name: str, namings: pa.Table, halves: pa.Table) -> Mask:
    """Returns for each naming whether its half, in the same row, has the same value."""
    return equal_or_null(namings[name], halves[name])


def _nameable_halves(
    halves: pa.Table, new_halves: pa.Table, ended: pa.Table, members: pa.Table, units: pa.Table
) -> pa.Table:
    """Returns the halves that an operation can name, at most one at each place."""
    unreadable = filter_rows(new_halves, to_mask(new_halves["error"].is_valid()))
    is_unreadable = to_mask(pc.equal(ended["status"], UNREADABLE))
    ended = filter_rows(ended, ~is_member(ended) | is_unreadable)

    parts = [
        build_frame(_NAMEABLE_ROWS, halves, status="PENDING"),
        _half_rows(unreadable, UNREADABLE),
        _half_rows(ended, ended["status"]),
        select(_NAMEABLE_ROWS, _OF_SETS, members=members, units=units),
    ]

    return pa.concat_tables(part for part in parts if part.num_rows or part is parts[0])


def _half_rows(rows: pa.Table, status: Any) -> pa.Table:
    """Returns halves outside the state, each as its own unit. Output: _NAMEABLE_ROWS."""
    return build_frame(
        _NAMEABLE_ROWS,
        rows,
        tran_size=None,
        unit_offset=rows["queue_offset"],
        status=status,
        discard_cause=None,
        deadline_at=deadlines(rows),
    )
