"""Which operation ends a half.

An operation is valid for a half when it passes PROTOCOL.md's tests 1 to 6 in their order; of the
valid COMMITs and ROLLBACKs the one with the smallest op offset wins, for ever. What is not valid
changes nothing and is a conflict with the first reason that applies.

Source: RocketMQ's TransactionalMessageServiceImpl (fillOpRemoveMap) and
EndTransactionProcessor.checkPrepareMessage, without their order effects (PROTOCOL.md lists the
differences).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import Mask, Numbers, choose, find, frame, longs, places, same, take, truth
from checker.frames import (
    COMMITTED,
    CONFLICTS,
    NAMINGS,
    UNREADABLE,
    Inputs,
    Instants,
    Parameters,
)
from checker.sql import run

# What stands for a set: a duplicate, and a member of a set that ended before.
_OF_SETS = """
SELECT m.queue_id, m.queue_offset, m.producer_group, m.transaction_id, m.unit_offset,
  coalesce(u.status, 'PENDING') AS status, u.op_queue_offset AS winner_offset, u.discard_cause
FROM members m JOIN units u ON m.queue_id = u.queue_id AND m.unit_offset = u.unit_offset
WHERE m.is_duplicate OR u.status IS NOT NULL
"""

# One candidate an operation and unit, at its first position; the same half named again stays, to
# become a duplicate_end. The operation that ended a set before is not a candidate again.
_CANDIDATES = """
SELECT v.*, coalesce(u.is_complete, true) AS is_complete, u.transaction_id AS set_transaction_id,
  u.producer_group AS set_producer_group
FROM (
  SELECT *,
    row_number() OVER (PARTITION BY queue_id, op_queue_offset, unit_offset
                       ORDER BY position) AS naming_of_unit,
    row_number() OVER (PARTITION BY queue_id, op_queue_offset, half_queue_offset
                       ORDER BY position) AS naming_of_half
  FROM verdicts WHERE verdict = 'valid' AND decision <> 'UNKNOWN'
) v
LEFT JOIN units u ON v.queue_id = u.queue_id AND v.unit_offset = u.unit_offset
WHERE (v.naming_of_unit = 1 OR v.naming_of_half > 1)
  AND (v.winner_offset IS NULL OR v.winner_offset <> v.op_queue_offset OR v.naming_of_half > 1)
"""

_RANKED = """
WITH ranked AS (
  SELECT *, row_number() OVER (PARTITION BY queue_id, unit_offset
                               ORDER BY op_queue_offset, position) AS rank
  FROM candidates
),
heads AS (
  SELECT queue_id, unit_offset, op_queue_offset, position, decision, cause,
    discard_cause IS NOT NULL AS is_late,
    is_complete
    OR decision = 'ROLLBACK' AND NOT EXISTS (
      -- An operation of smaller offset that names a half still to come could end this set.
      FROM verdicts w
      WHERE w.verdict = 'waits' AND w.decision <> 'UNKNOWN' AND w.queue_id = ranked.queue_id
        AND w.op_queue_offset < ranked.op_queue_offset
        AND w.producer_group = ranked.set_producer_group
        AND (w.transaction_id IS NULL OR w.transaction_id = ranked.set_transaction_id)
        AND NOT list_contains(coalesce(w.refused_units, []), ranked.unit_offset)
    ) AS takes_effect
  FROM ranked
  WHERE rank = 1 AND status = 'PENDING' AND (discard_cause IS NULL OR $applies_late_ends)
)
SELECT r.queue_id, r.op_queue_offset, r.position, r.half_queue_offset, r.unit_offset, r.decision,
  CASE WHEN h.is_late THEN 'late_end' ELSE r.cause END AS cause,
  CASE
    WHEN r.status <> 'PENDING' THEN
      CASE WHEN (r.status = 'COMMITTED') = (r.decision = 'COMMIT') THEN 'duplicate_end'
           ELSE 'conflicting_end' END
    WHEN h.queue_id IS NULL THEN 'end_after_discard'
    WHEN NOT h.takes_effect THEN 'waits'
    WHEN r.rank = 1 THEN 'wins'
    WHEN r.decision = h.decision THEN 'duplicate_end'
    ELSE 'conflicting_end'
  END AS verdict
FROM ranked r
LEFT JOIN heads h ON r.queue_id = h.queue_id AND r.unit_offset = h.unit_offset
"""

ABSORBED = "absorbed"  # stands for a unit that its operation was decided for before: no row

_VERDICT_ROWS = pa.schema(
    [*NAMINGS, ("unit_offset", pa.int64()), ("status", pa.string()),
     ("winner_offset", pa.int64()), ("discard_cause", pa.string()), ("verdict", pa.string())]
)  # fmt: skip
_JUDGED_ROWS = pa.schema(
    [*(NAMINGS.field(name) for name in ("queue_id", "op_queue_offset", "position",
                                        "half_queue_offset")),
     ("unit_offset", pa.int64()), ("decision", pa.string()), ("cause", pa.string()),
     ("verdict", pa.string())]
)  # fmt: skip
_KNOWN_ROWS = pa.schema(
    [NAMINGS.field("queue_id"), ("queue_offset", pa.int64()),
     *(NAMINGS.field(name) for name in ("producer_group", "transaction_id")),
     *(_VERDICT_ROWS.field(name) for name in ("unit_offset", "status", "winner_offset",
                                              "discard_cause"))]
)  # fmt: skip
_ANSWER_ROWS = pa.schema(
    [("queue_id", pa.int32()), ("unit_offset", pa.int64()), ("answered_at", pa.int64())]
)


@dataclass(frozen=True)
class Matched:
    """What an epoch's operations do.

    `wins`: the units that are ended, by which operation; `conflicts` (CONFLICTS); `waiting`: the
    namings that go on waiting (NAMINGS); `answers`: as the function of that name gives them.
    """

    wins: pa.Table
    conflicts: pa.Table
    waiting: pa.Table
    answers: pa.Table


def match(
    waiting: pa.Table,
    inputs: Inputs,
    halves: pa.Table,
    members: pa.Table,
    units: pa.Table,
    instants: Instants,
    parameters: Parameters,
) -> Matched:
    """Find what the operations do to the halves: those that waited, and those of the epoch.

    Input: NAMINGS, HALVES (new ones included), the frames of `set_members` and `set_units`.
    """
    named = pa.concat_tables([waiting, namings(inputs.operations, instants.epoch_at)])
    found = verdicts(
        named, halves, inputs.halves, inputs.ended, members, units, instants.queues,
        parameters.orphan_operation_ttl_ms,
    )  # fmt: skip
    del named  # with millions of records it is some hundred megabytes
    judged = judge(found, units, parameters.late_end_policy == "apply")
    return Matched(
        wins=judged.filter(pc.equal(judged["verdict"], "wins")),
        conflicts=conflicts(inputs.operations, found, judged).cast(CONFLICTS),
        waiting=still_waiting(found, judged).cast(NAMINGS),
        answers=answers(found),
    )


def namings(operations: pa.Table, landed_at: int) -> pa.Table:
    """Take readable operations apart: one row for each half that each names.

    Input: OPERATIONS; `landed_at`: T of the epoch that lands them.
    Output: NAMINGS.
    """
    can_be_read = pc.is_null(operations["error"])
    if not pc.all(can_be_read).as_py():
        operations = operations.filter(can_be_read)
    halves, ids = operations["half_offsets"], operations["transaction_ids"]
    operation, position = _positions(halves)
    named = operations.select(["queue_id", "op_queue_offset", "stored_at", "producer_group",
                               "decision", "cause"])  # fmt: skip
    if len(operation) != operations.num_rows or position.any():
        named = named.take(pa.array(operation))
    return frame(
        NAMINGS,
        named,
        position=pa.array(position.astype(np.int32)),
        half_queue_offset=pc.list_flatten(halves),
        transaction_id=_at_positions(ids, operation, position),
        landed_at=landed_at,
        refused_units=None,
    )


def _positions(lists: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
    """Return of each element of a column of lists its row, and its position in the row's list."""
    counts = longs(pc.list_value_length(lists), null=0)
    starts = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - starts[row]


def _at_positions(lists: pa.ChunkedArray, row: Numbers, position: Numbers) -> pa.ChunkedArray:
    """Return the element at a position of a row's list; null where the list is not so long."""
    counts = longs(pc.list_value_length(lists), null=0)
    starts, elements = np.cumsum(counts) - counts, pc.list_flatten(lists)
    at = np.where(position < counts[row], starts[row] + position, -1)
    if len(at) == len(elements) and (np.diff(at, prepend=-1) == 1).all():
        return elements
    return elements.take(pa.array(at, mask=at < 0))


def verdicts(
    namings: pa.Table,
    halves: pa.Table,
    new_halves: pa.Table,
    ended: pa.Table,
    members: pa.Table,
    units: pa.Table,
    queues: pa.Table,
    orphan_ttl_ms: int,
) -> pa.Table:
    """Put every naming to tests 2 to 5.

    Output: NAMINGS, the unit it names, its status, and `verdict`: `valid`, `waits` (its half is
    still to come), `absorbed` (its operation was refused for this set before) or the reason of a
    conflict.
    """
    if namings.num_rows == 0:
        return _VERDICT_ROWS.empty_table()
    known = _known(halves, new_halves, ended, members, units)
    at = find(places(namings, "half_queue_offset"), places(known))
    found = take(known, at)
    queue = take(queues, find(longs(namings["queue_id"]), longs(queues["queue_id"])))
    is_missing = at < 0
    is_ahead = is_missing & (
        longs(namings["half_queue_offset"]) >= longs(queue["half_end"], null=0)
    )
    waits_ms = pc.subtract(queue["halves_known_at"], namings["landed_at"])
    verdict = choose(
        [
            (is_ahead & truth(pc.greater(waits_ms, orphan_ttl_ms)), "orphan_expired"),
            (is_ahead, "waits"),
            (is_missing, "unknown_half"),
            (truth(pc.equal(found["status"], UNREADABLE)), "unreadable_half"),
            (~same(namings["producer_group"], found["producer_group"]), "wrong_producer_group"),
            (~same(namings["transaction_id"], found["transaction_id"]), "wrong_transaction_id"),
            (_is_refused(namings["refused_units"], found["unit_offset"]), ABSORBED),
        ],
        "valid",
    )
    named = [found[name] for name in ("unit_offset", "status", "winner_offset", "discard_cause")]
    return pa.table([*namings.columns, *named, verdict], schema=_VERDICT_ROWS)


def _is_refused(refused_units: pa.ChunkedArray, unit_offset: pa.ChunkedArray) -> Mask:
    """Return for each naming whether its operation is a conflict for this unit already."""
    refused = np.zeros(len(refused_units), bool)
    if refused_units.null_count < len(refused_units):
        pairs = zip(refused_units.to_pylist(), unit_offset.to_pylist(), strict=True)
        refused[:] = [unit in (units or ()) for units, unit in pairs]
    return refused


def _known(
    halves: pa.Table, new_halves: pa.Table, ended: pa.Table, members: pa.Table, units: pa.Table
) -> pa.Table:
    """Return what stands at each half coordinate that can be named; no two stand at one."""
    unreadable = new_halves.filter(new_halves["error"].is_valid())
    alone = truth(pc.less_equal(ended["tran_size"], 1)) | truth(ended["tran_size"].is_null())
    ended = ended.filter(pa.array(alone | truth(pc.equal(ended["status"], UNREADABLE))))
    parts = [
        frame(_KNOWN_ROWS, halves, status="PENDING", winner_offset=None),
        _standing(unreadable, UNREADABLE, None),
        _standing(ended, ended["status"], ended["op_queue_offset"]),
    ]
    if members.num_rows:
        parts.append(run(_OF_SETS, members=members, units=units).cast(_KNOWN_ROWS))
    return pa.concat_tables(part for part in parts if part.num_rows or part is parts[0])


def _standing(rows: pa.Table, status: Any, winner_offset: Any) -> pa.Table:
    """Return halves that are no state, each its own unit. Output: _KNOWN_ROWS."""
    return frame(
        _KNOWN_ROWS,
        rows,
        unit_offset=rows["queue_offset"],
        status=status,
        winner_offset=winner_offset,
        discard_cause=None,
    )


def judge(verdicts: pa.Table, units: pa.Table, applies_late_ends: bool) -> pa.Table:
    """Put valid COMMITs and ROLLBACKs to test 6: who wins, who waits, who comes too late.

    Input: the frames of `verdicts` and `set_units`.
    Output: queue_id, op_queue_offset, position, half_queue_offset, unit_offset, decision, cause
    and `verdict`: `wins`, `waits`, or the reason of a conflict.
    """
    is_end = truth(pc.equal(verdicts["verdict"], "valid"))
    is_end &= ~truth(pc.equal(verdicts["decision"], "UNKNOWN"))
    ends = verdicts if is_end.all() else verdicts.filter(pa.array(is_end))
    is_contested = _contested(ends, units)
    judged = _judge_alone(ends.filter(pa.array(~is_contested)), applies_late_ends)
    if not is_contested.any():
        return judged
    wanted = ends.filter(pa.array(is_contested))
    candidates = run(_CANDIDATES, verdicts=wanted, units=units)
    values = {"applies_late_ends": applies_late_ends}
    ranked = run(_RANKED, values, candidates=candidates, verdicts=verdicts)
    return pa.concat_tables([judged, ranked.cast(_JUDGED_ROWS)])


def _contested(ends: pa.Table, units: pa.Table) -> Mask:
    """Say which namings must be ranked: several want to end that unit, or it is a set."""
    named = places(ends, "unit_offset")
    unit, place, counts = np.unique(named, return_inverse=True, return_counts=True)
    is_set = find(unit, places(units, "unit_offset")) >= 0
    return ((counts > 1) | is_set)[place]


def _judge_alone(ends: pa.Table, applies_late_ends: bool) -> pa.Table:
    """Judge namings of units that nobody else wants to end: each is the first candidate.

    The operation that ended its half before is none again.
    """
    is_again = truth(pc.equal(ends["winner_offset"], ends["op_queue_offset"]))
    ends = ends.filter(pa.array(~is_again)) if is_again.any() else ends
    is_pending = truth(pc.equal(ends["status"], "PENDING"))
    is_discarded = truth(ends["discard_cause"].is_valid())
    agrees = truth(pc.equal(ends["status"], COMMITTED)) == truth(
        pc.equal(ends["decision"], "COMMIT")
    )
    verdict = choose(
        [
            (~is_pending & agrees, "duplicate_end"),
            (~is_pending, "conflicting_end"),
            (is_discarded & (not applies_late_ends), "end_after_discard"),
        ],
        "wins",
    )
    is_late = is_pending & is_discarded & applies_late_ends
    cause = pc.if_else(pa.array(is_late), "late_end", ends["cause"])
    return frame(_JUDGED_ROWS, ends, verdict=verdict, cause=cause)


def answers(verdicts: pa.Table) -> pa.Table:
    """Return the producer's last answer (UNKNOWN) of each unit that can still be ended.

    Output: queue_id, unit_offset, answered_at (when the broker stored it).
    """
    if "UNKNOWN" not in pc.unique(verdicts["decision"]).to_pylist():
        return _ANSWER_ROWS.empty_table()
    return run(
        """
        SELECT queue_id, unit_offset, max(stored_at) AS answered_at
        FROM verdicts
        WHERE verdict = 'valid' AND decision = 'UNKNOWN' AND status = 'PENDING'
        GROUP BY queue_id, unit_offset
        """,
        verdicts=verdicts,
    )


def conflicts(operations: pa.Table, verdicts: pa.Table, judged: pa.Table) -> pa.Table:
    """Return each operation without effect, with its reason. Output: CONFLICTS."""
    if operations.num_rows == 0 and verdicts.num_rows == 0:
        return CONFLICTS.empty_table()
    return run(
        """
        SELECT queue_id, op_queue_offset, NULL::BIGINT AS half_queue_offset,
          'unreadable_operation' AS reason
        FROM operations WHERE error IS NOT NULL
        UNION ALL
        SELECT queue_id, op_queue_offset, half_queue_offset, verdict
        FROM verdicts WHERE verdict NOT IN ('valid', 'waits', 'absorbed')
        UNION ALL
        SELECT queue_id, op_queue_offset, half_queue_offset, verdict
        FROM judged WHERE verdict NOT IN ('wins', 'waits')
        ORDER BY queue_id, op_queue_offset, half_queue_offset, reason
        """,
        operations=operations,
        verdicts=verdicts,
        judged=judged,
    )


def still_waiting(verdicts: pa.Table, judged: pa.Table) -> pa.Table:
    """Return the namings that wait for their half or, all of an operation's, for their set.

    An operation that is refused for a discarded set (`end_after_discard`) stays so for its
    positions that still wait, whatever lands there: `refused_units` says it.
    Output: NAMINGS.
    """
    if verdicts.num_rows == 0:
        return NAMINGS.empty_table()
    return run(
        """
        SELECT v.queue_id, v.op_queue_offset, v.position, v.half_queue_offset, v.decision,
          v.producer_group, v.transaction_id, v.cause, v.stored_at, v.landed_at,
          CASE WHEN r.units IS NULL THEN v.refused_units
            ELSE list_sort(list_distinct(list_concat(coalesce(v.refused_units, []), r.units)))
          END AS refused_units
        FROM verdicts v
        LEFT JOIN (SELECT DISTINCT queue_id, op_queue_offset, unit_offset FROM judged
                   WHERE verdict = 'waits') j
          ON v.queue_id = j.queue_id AND v.op_queue_offset = j.op_queue_offset
          AND v.unit_offset = j.unit_offset AND v.verdict = 'valid'
        LEFT JOIN (SELECT queue_id, op_queue_offset, list(unit_offset) AS units FROM judged
                   WHERE verdict = 'end_after_discard' GROUP BY queue_id, op_queue_offset) r
          ON v.queue_id = r.queue_id AND v.op_queue_offset = r.op_queue_offset
        WHERE v.verdict = 'waits' OR j.queue_id IS NOT NULL
        ORDER BY v.queue_id, v.op_queue_offset, v.position
        """,
        verdicts=verdicts,
        judged=judged,
    )
