"""The effects of time on a half: when a check is due, when it is discarded, and its next step.

All rules here read `known_at` of the half's queue, never `epoch_at`: a job that lags neither asks
about nor discards a half that was ended long ago in Kafka. While `known_at` is not known nothing
happens.

Source: docs/protocol/rules.md "What happens to a half at an epoch", lines 3 to 7; RocketMQ's
TransactionalMessageServiceImpl.check (needDiscard, needSkip, isNeedCheck).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from checker.frames import DUE, HALVES, Change, Decision, Parameters
from checker.frames_ops.active import is_named, join, split
from checker.frames_ops.columns import (
    Mask,
    Numbers,
    case_when,
    filter_rows,
    index_of,
    to_int64,
    to_mask,
)
from checker.frames_ops.sql import run
from checker.rules.sets import only_sets
from storage.schemas import row_keys

EXPIRED: Final = "expired"
CHECK_MAX: Final = "check_max"
CHECK: Final = "due"
# The longest wait after attempts that Kafka did not acknowledge, unless the interval is longer.
BACK_OFF_MS_MAX: Final = 3_600_000
_DOUBLINGS_MAX = 22  # from 1 ms on they reach the maximum
# Before all instants; differences with it still fit into 64 bits.
_UNKNOWN = -(1 << 62)

# Producer groups share the rate: the first check of each group, then the second of each, and so on.
_DUE = """
WITH ranked AS (
  SELECT *, row_number() OVER (PARTITION BY producer_group
                               ORDER BY stored_at, queue_id, queue_offset) AS rank_in_group
  FROM rules WHERE rule = 'due'
),
taken AS (
  SELECT * FROM ranked ORDER BY rank_in_group, stored_at, queue_id, queue_offset
  LIMIT $check_rate_max
)
SELECT t.queue_id, t.queue_offset, t.arm, t.check_times + 1 AS check_times, t.producer_group,
  t.transaction_id, t.real_topic,
  coalesce(s.half_offsets, [t.queue_offset]) AS half_offsets
FROM taken t
LEFT JOIN (
  SELECT queue_id, unit_offset, list(queue_offset ORDER BY queue_offset) AS half_offsets
  FROM members GROUP BY queue_id, unit_offset
) s ON t.queue_id = s.queue_id AND t.unit_offset = s.unit_offset
ORDER BY t.rank_in_group, t.stored_at, t.queue_id, t.queue_offset
"""

_RULE_COLUMNS = [
    "queue_id",
    "queue_offset",
    "unit_offset",
    "arm",
    "producer_group",
    "transaction_id",
    "real_topic",
    "stored_at",
    "check_times",
]


def _thresholds(halves: pa.Table, parameters: Parameters) -> tuple[Numbers, Numbers]:
    """Returns the first `known_at` at which each half has expired, and at which it is due.

    It is due to be checked or, after `check_max` checks, to be discarded. Immunity is over when
    `known_at` - `age_from_at` exceeds it; a further check is due when `known_at` - `checked_at` has
    reached the interval, which attempts that Kafka did not acknowledge make longer.
    """
    age_from_at = to_int64(halves["age_from_at"])
    was_checked = to_mask(halves["checked_at"].is_valid())
    immunity_ms = to_int64(halves["immunity_ms"], null=parameters.transaction_timeout_ms)

    first_at = age_from_at + immunity_ms + 1
    again_at = to_int64(halves["checked_at"]) + _interval_ms(halves, parameters.check_interval_ms)

    due_at = np.where(was_checked, again_at, first_at)
    expired_at = age_from_at + parameters.half_retention_ms + 1

    return expired_at, due_at


def with_age(new_halves: pa.Table, queues: pa.Table, parameters: Parameters) -> pa.Table:
    """Returns the new halves with `age_from_at`: the instant from which the age of each counts.

    It is the later of `stored_at` and the `known_at` that the half's queue had in the epoch before.
    After a step of the clocks `known_at` can be days ahead of what the broker says; a half that
    lands then still has its immunity, its checks and their intervals.

    Input: NEW_HALVES, QUEUES. Output: NEW_HALVES and `age_from_at`.
    Replay: plans before rule version 5 lack the parameter; their halves age from `stored_at`.
    """
    age_from_at = to_int64(new_halves["stored_at"])
    if parameters.ages_from_known_at:
        earlier_known_at = _queue_instants("earlier_known_at", new_halves, queues)
        age_from_at = np.maximum(age_from_at, earlier_known_at)

    return new_halves.append_column("age_from_at", pa.array(age_from_at))


def _interval_ms(halves: pa.Table, check_interval_ms: int) -> Numbers:
    """Returns how long each half's next attempt waits after its last one.

    The second attempt in a row that Kafka did not acknowledge doubles it, and so does each further
    one: a group that has no check topic costs a few rows a day.
    """
    doublings = np.clip(to_int64(halves["unacknowledged"]) - 1, 0, _DOUBLINGS_MAX)
    return np.minimum(check_interval_ms << doublings, max(check_interval_ms, BACK_OFF_MS_MAX))


def next_due_at(halves: pa.Table, parameters: Parameters) -> int | None:
    """Returns the first `known_at` at which time acts upon one of the halves; None: upon none."""
    first_halves = filter_rows(halves, _is_open_first_half(halves))
    if first_halves.num_rows == 0:
        return None

    return int(np.minimum(*_thresholds(first_halves, parameters)).min())


def _rules(halves: pa.Table, known_at: Numbers, parameters: Parameters) -> pa.Array:
    """Returns the rule that holds for each half at this `known_at` of its queue, or null.

    Source: docs/protocol/rules.md "What happens to a half at an epoch": line 3 before 4 before 5
    and 6.
    """
    expired_at, due_at = _thresholds(halves, parameters)
    return case_when(
        [
            (known_at >= expired_at, EXPIRED),
            (known_at < due_at, None),
            (to_int64(halves["check_times"]) >= parameters.check_max, CHECK_MAX),
        ],
        CHECK,
    )


def apply_time(
    halves: pa.Table, wins: pa.Table, queues: pa.Table, parameters: Parameters
) -> pa.Table:
    """Returns each unit that time acts upon, with its rule: `expired`, `check_max` or `due`.

    Input: HALVES (new ones included), the units that an operation ends now, QUEUES.
    Output: columns of the unit's first half and `rule`.
    """
    rule, is_due = _due_rules(halves, queues, parameters)
    is_due &= index_of(row_keys(halves, "unit_offset"), row_keys(wins, "unit_offset")) < 0

    units = filter_rows(halves.select(_RULE_COLUMNS), is_due)
    return units.append_column("rule", rule.filter(pa.array(is_due)))


def is_time_due(halves: pa.Table, queues: pa.Table, parameters: Parameters) -> Mask:
    """Returns for each half whether time acts upon it, as the first half of its unit."""
    _, is_due = _due_rules(halves, queues, parameters)
    return is_due


def _due_rules(halves: pa.Table, queues: pa.Table, parameters: Parameters) -> tuple[pa.Array, Mask]:
    """Returns the rule of each half, and whether it is due: the half is the first of its unit."""
    rule = _rules(halves, _queue_instants("known_at", halves, queues), parameters)
    is_due = to_mask(rule.is_valid()) & _is_open_first_half(halves)

    return rule, is_due


def _is_open_first_half(halves: pa.Table) -> Mask:
    """Returns whether each half is its unit's first, and not discarded."""
    is_first = to_int64(halves["queue_offset"]) == to_int64(halves["unit_offset"])
    return is_first & to_mask(halves["discard_cause"].is_null())


def _queue_instants(name: str, halves: pa.Table, queues: pa.Table) -> Numbers:
    """Returns an instant of each half's queue; one before all others while it is unknown.

    Input: `name`: a column of QUEUES.
    """
    at = index_of(to_int64(halves["queue_id"]), to_int64(queues["queue_id"]))
    return np.append(to_int64(queues[name], null=_UNKNOWN), _UNKNOWN)[at]


@dataclass(frozen=True)
class NextStep:
    """The rule that will hold first: `line` of the protocol's table, and its `rule`.

    `reached_at`: the first `known_at`, in ms, at which it holds.
    """

    line: int
    rule: str
    reached_at: int


_TIMED = ("age_from_at", "immunity_ms", "check_times", "unacknowledged", "checked_at")


def next_step(first: Mapping[str, Any], parameters: Parameters) -> NextStep:
    """Returns what happens next to a pending half if no operation ends it.

    Input: a row of HALVES: its unit's first half. Units: ms.
    """
    schema = pa.schema([HALVES.field(name) for name in _TIMED])
    half = pa.Table.from_pylist([{name: first[name] for name in _TIMED}], schema=schema)

    reached_at = np.minimum(*_thresholds(half, parameters))
    (rule,) = _rules(half, reached_at, parameters).to_pylist()

    check_line = 5 if first["checked_at"] is None else 6
    line = {EXPIRED: 3, CHECK_MAX: 4, CHECK: check_line}[rule]
    return NextStep(line, rule, int(reached_at[0]))


def due_checks(rules: pa.Table, halves: pa.Table, check_rate_max: int) -> pa.Table:
    """Returns the checks to send now, oldest first; producer groups share the rate.

    Output: DUE. Due checks beyond the rate are left out and stay due.
    """
    if rules.num_rows == 0:
        return DUE.empty_table()
    return run(_DUE, {"check_rate_max": check_rate_max}, rules=rules, members=only_sets(halves))


def record_attempts(decision: Decision, attempts: pa.Table, sent_at: int) -> Decision:
    """Returns the decision with attempts to ask in its state and its changes.

    `checked_at` becomes the instant of the attempt. `check_times` grows only if Kafka acknowledged
    it; `unacknowledged` counts those in a row that it did not.

    Input: ATTEMPTS, of which it reads queue_id, queue_offset and acknowledged. A check that could
    not be handed to Kafka is no attempt and is left out.
    """
    if attempts.num_rows == 0:
        return decision

    halves = decision.state.halves
    checked, rest = split(halves, is_named(halves, attempts))
    counted = _count_attempts(checked, attempts, sent_at)
    state = replace(decision.state, halves=join(rest, counted))

    change = decision.changes["halves"]
    others = filter_rows(change.put, ~is_named(change.put, attempts))
    put = pa.concat_tables([others, counted])
    changes = {**decision.changes, "halves": Change(put, change.left)}

    return replace(decision, state=state, changes=changes)


def _count_attempts(halves: pa.Table, attempts: pa.Table, sent_at: int) -> pa.Table:
    """Returns the halves that were asked about, with the attempt counted. Output: HALVES."""
    return run(
        """
        SELECT h.* REPLACE (
          (h.check_times + CASE WHEN a.acknowledged THEN 1 ELSE 0 END)::INTEGER AS check_times,
          CASE WHEN a.acknowledged THEN 0 ELSE h.unacknowledged + 1 END::INTEGER AS unacknowledged,
          $sent_at::BIGINT AS checked_at)
        FROM halves h
        JOIN attempts a ON h.queue_id = a.queue_id AND h.queue_offset = a.queue_offset
        """,
        {"sent_at": sent_at},
        halves=halves,
        attempts=attempts,
    ).cast(halves.schema)
