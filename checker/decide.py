"""One epoch's decision, from what is true before it and what it lands.

The steps, in order: the halves that the floor has passed leave the state; operator commands; which
halves belong together; which operation ends which half; what time does to the rest; what is
delivered where; the state after the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import (
    COMMAND_RESULTS,
    COMMITTED,
    DELAYED,
    DELIVERIES,
    DISCARDED,
    DUE,
    HALVES,
    OUTCOMES,
    ROLLED_BACK,
    Decision,
    Inputs,
    Instants,
    Parameters,
    State,
)
from checker.frames_ops import active
from checker.frames_ops.changes import changes
from checker.frames_ops.columns import (
    Numbers,
    build_frame,
    filter_rows,
    index_of,
    take,
    to_int64,
    to_mask,
)
from checker.frames_ops.sql import run
from checker.rules import commands, delay, delivery, naming, operations, presence, sets, timing
from storage.schemas import row_keys

# Ends that do not come from an operation of this epoch, one row a half.
_OTHER_ENDS = """
SELECT h.queue_id, h.queue_offset, h.arm, 'DISCARDED' AS outcome, r.rule AS cause,
  NULL AS op_queue_offset, NULL AS position, h.producer_group, h.transaction_id, h.tran_seq,
  h.real_topic, h.real_queue_id, h.delay_level, h.delay_ms, h.deliver_at, h.discards
FROM halves h JOIN rules r ON h.queue_id = r.queue_id AND h.unit_offset = r.unit_offset
WHERE r.rule <> 'due'
UNION ALL
-- A half that lands after its set was discarded is discarded with it.
SELECT h.queue_id, h.queue_offset, h.arm, 'DISCARDED', h.discard_cause, NULL, NULL,
  h.producer_group, h.transaction_id, h.tran_seq, h.real_topic, h.real_queue_id, h.delay_level,
  h.delay_ms, h.deliver_at, h.discards
FROM halves h
SEMI JOIN new_halves n ON h.queue_id = n.queue_id AND h.queue_offset = n.queue_offset
ANTI JOIN wins w ON h.queue_id = w.queue_id AND h.unit_offset = w.unit_offset
WHERE h.discard_cause IS NOT NULL
UNION ALL
-- Duplicates of a TRAN_SEQ, and members that land after their set was ended. One that was committed
-- was complete: what lands later is a duplicate, though its first half can be below the floor.
SELECT m.queue_id, m.queue_offset, coalesce(u.arm, 0)::INTEGER, 'ROLLED_BACK',
  CASE WHEN m.is_duplicate THEN 'duplicate_in_set' ELSE u.cause END,
  CASE WHEN NOT m.is_duplicate THEN u.op_queue_offset END, NULL, m.producer_group,
  m.transaction_id, m.tran_seq, n.real_topic, n.real_queue_id, n.delay_level, n.delay_ms,
  n.deliver_at, 0
FROM (SELECT x.* EXCLUDE (is_duplicate), x.is_duplicate OR (x.is_new AND y.status = 'COMMITTED')
        IS TRUE AS is_duplicate
      FROM members x
      JOIN units y ON x.queue_id = y.queue_id AND x.unit_offset = y.unit_offset) m
JOIN units u ON m.queue_id = u.queue_id AND m.unit_offset = u.unit_offset
JOIN new_halves n ON m.queue_id = n.queue_id AND m.queue_offset = n.queue_offset
WHERE m.is_duplicate OR u.status IS NOT NULL
"""
_MESSAGE_COLUMNS = (
    "producer_group",
    "transaction_id",
    "tran_seq",
    "real_topic",
    "real_queue_id",
    "delay_level",
    "delay_ms",
    "deliver_at",
    "discards",
)
_END_ROWS = pa.schema(
    [
        *(HALVES.field(name) for name in ("queue_id", "queue_offset", "arm")),
        ("outcome", pa.string()),
        ("cause", pa.string()),
        ("op_queue_offset", pa.int64()),
        ("position", pa.int32()),
        *(HALVES.field(name) for name in _MESSAGE_COLUMNS),
    ]
)
# The columns of an end that its delivery needs.
_COMMITTED_COLUMNS = [
    "queue_id",
    "queue_offset",
    "op_queue_offset",
    "position",
    "tran_seq",
    "real_topic",
    "real_queue_id",
    "delay_level",
    "delay_ms",
    "deliver_at",
    "producer_group",
]

_DUE_AT = f"""
SELECT * EXCLUDE (counted_from), {delay.DELIVER_AT_SQL} AS due_at
FROM (SELECT *, $epoch_at::BIGINT AS counted_from FROM committed)
"""

_REMAINING = """
SELECT h.* REPLACE (
  coalesce(x.cause, h.discard_cause) AS discard_cause,
  (h.discards + CASE WHEN x.queue_id IS NULL THEN 0 ELSE 1 END)::INTEGER AS discards,
  CASE WHEN h.queue_offset = h.unit_offset THEN greatest(a.answered_at, h.last_answer_at)
    END AS last_answer_at)
FROM halves h
LEFT JOIN (SELECT * FROM ends WHERE outcome = 'DISCARDED') x
  ON h.queue_id = x.queue_id AND h.queue_offset = x.queue_offset
LEFT JOIN answers a ON h.queue_id = a.queue_id AND h.unit_offset = a.unit_offset
"""


def is_something_due(state: State, instants: Instants, parameters: Parameters) -> bool:
    """Returns whether time alone asks for an epoch: without any record something is due.

    That is a check, a discard, a delivery or an orphaned operation.
    """
    return (
        bool(delay.is_due(state.delayed["deliver_at"], instants.epoch_at).any())
        or naming.has_orphan(state.waiting, instants.queues, parameters.orphan_operation_ttl_ms)
        or bool(timing.is_time_due(state.halves, instants.queues, parameters).any())
    )


def decide(
    state: State,
    inputs: Inputs,
    instants: Instants,
    parameters: Parameters,
    after_step: Callable[[], None] = lambda: None,
) -> Decision:
    """Returns the decision of one epoch.

    Input: the state before it; the epoch's records, with the rows that `lookups` names; `epoch_at`
    and `known_at`. `after_step` is called where large frames have just been dropped: the shell can
    release their memory there.
    Output: Decision; `timing.record_attempts` adds the attempts to ask.
    Replay: the same input gives the same rows; nothing else is read.
    Source: PROTOCOL.md.
    """
    is_active = sets.members_with_id(state.halves, inputs.halves, inputs.ended)
    is_active |= timing.is_time_due(state.halves, instants.queues, parameters)
    is_active |= presence.drops_out(state, inputs.ended, instants.queues)

    is_due = delay.is_due(state.delayed["deliver_at"], instants.epoch_at)
    is_old = presence.is_below(inputs.ended, instants.queues)
    is_due |= active.is_named(state.delayed, filter_rows(inputs.ended, is_old))

    can_act = naming.can_take_effect(
        state.waiting, inputs.operations, instants.queues, parameters.orphan_operation_ttl_ms
    )

    active_state, rest = active.partition_state(
        state, inputs, is_active, sets.is_member(state.halves), is_due, can_act
    )

    decision = _decide(active_state, inputs, instants, parameters, after_step)
    after = replace(
        decision.state,
        halves=active.join(rest.halves, decision.state.halves),
        delayed=active.join(rest.delayed, decision.state.delayed, "deliver_at"),
        waiting=active.join(rest.waiting, decision.state.waiting),
    )

    return replace(decision, state=after, changes=changes(active_state, decision.state))


def _decide(
    state: State,
    inputs: Inputs,
    instants: Instants,
    parameters: Parameters,
    after_step: Callable[[], None],
) -> Decision:
    """Returns the decision for a part of the state: the rows that the epoch can touch."""
    epoch_at = instants.epoch_at

    is_kept = ~presence.drops_out(state, inputs.ended, instants.queues)
    state = replace(state, halves=filter_rows(state.halves, is_kept))

    command_effects = commands.apply_commands(inputs, state, epoch_at, parameters)
    state = command_effects.state

    is_visible = presence.is_there(inputs.ended, state, instants.queues)
    inputs = replace(inputs, ended=filter_rows(inputs.ended, is_visible))

    members = sets.set_members(state.halves, inputs.halves, inputs.ended)
    units = sets.set_units(members)

    new_halves = timing.with_age(inputs.halves, instants.queues, parameters)
    halves = sets.add_new_halves(state.halves, new_halves, members, units)

    operation_effects = operations.apply_operations(
        state.waiting, inputs, halves, members, units, instants, parameters, after_step
    )
    wins = operation_effects.wins

    rules = timing.apply_time(halves, wins, instants.queues, parameters)
    due = timing.due_checks(rules, halves, parameters.check_rate_max).cast(DUE)

    winner = index_of(row_keys(halves, "unit_offset"), row_keys(wins, "unit_offset"))
    ends = pa.concat_tables(
        [
            _ends_by_operation(halves, wins, winner),
            _other_ends(halves, wins, rules, inputs, members, units),
        ]
    )
    remaining = _remaining_halves(filter_rows(halves, winner < 0), ends, operation_effects.answers)
    del halves, wins
    after_step()

    committed = _committed_messages(ends, epoch_at, parameters)
    delayed = pa.concat_tables(
        [
            state.delayed,
            delay.admit_schedules(inputs.schedules, epoch_at, parameters),
            _delayed_halves(committed, epoch_at),
        ]
    )

    is_due = delay.is_due(delayed["deliver_at"], epoch_at)
    immediate = filter_rows(committed, delay.is_due(committed["due_at"], epoch_at))
    ordered = delivery.order_messages(
        filter_rows(delayed, is_due), immediate, command_effects.resumed
    )
    del committed, immediate

    is_first = to_mask(pc.equal(ends["outcome"], DISCARDED)) & (to_int64(ends["discards"]) == 0)
    delivery_result = delivery.deliver_messages(
        ordered, filter_rows(ends, is_first), state, command_effects.topics, parameters
    )
    del ordered
    after_step()

    placements = delivery_result.placements
    return Decision(
        outcomes=_outcomes(ends, placements),
        conflicts=operation_effects.conflicts,
        due=due,
        delayed=delayed.slice(state.delayed.num_rows),
        deliveries=pa.concat_tables(
            [_cancelled_deliveries(command_effects.cancelled), delivery_result.deliveries]
        ),
        placements=placements,
        new_topics=pa.concat_tables([command_effects.resized, delivery_result.new_topics]),
        command_results=_command_results(command_effects, delivery_result.still_undeliverable),
        state=State(
            halves=remaining,
            waiting=operation_effects.waiting,
            delayed=filter_rows(delayed, ~is_due),
            topics=pa.concat_tables([state.topics, delivery_result.new_topics]).combine_chunks(),
            next_offsets=delivery.advance_offsets(state.next_offsets, placements),
        ),
    )


def _ends_by_operation(halves: pa.Table, wins: pa.Table, winner: Numbers) -> pa.Table:
    """Returns the halves that an operation of this epoch ends.

    Input: `winner`: the row of each half's operation in `wins`, or -1.
    """
    by_operation = ["cause", "op_queue_offset", "position"]
    of_half = [name for name in _END_ROWS.names if name not in ("outcome", *by_operation)]

    ended = filter_rows(halves.select(of_half), winner >= 0)
    won = wins.select(["decision", *by_operation]).take(pa.array(winner[winner >= 0]))

    outcome = pc.if_else(pc.equal(won["decision"], "COMMIT"), COMMITTED, ROLLED_BACK)

    return build_frame(
        _END_ROWS, ended, outcome=outcome, **{name: won[name] for name in by_operation}
    )


def _other_ends(
    halves: pa.Table,
    wins: pa.Table,
    rules: pa.Table,
    inputs: Inputs,
    members: pa.Table,
    units: pa.Table,
) -> pa.Table:
    """Returns the halves that time or their set ends: discards, duplicates, late members.

    Output: _END_ROWS.
    """
    has_discarded = halves["discard_cause"].null_count < halves.num_rows
    has_discards = bool(set(pc.unique(rules["rule"]).to_pylist()) - {"due"})

    if not (members.num_rows or has_discarded or has_discards):
        return _END_ROWS.empty_table()

    return run(
        _OTHER_ENDS,
        halves=halves,
        wins=wins,
        rules=rules,
        new_halves=inputs.halves,
        members=members,
        units=units,
    ).cast(_END_ROWS)


def _committed_messages(ends: pa.Table, epoch_at: int, parameters: Parameters) -> pa.Table:
    """Returns where the committed halves go and when they are due; null: at once."""
    committed = filter_rows(
        ends.select(_COMMITTED_COLUMNS), to_mask(pc.equal(ends["outcome"], COMMITTED))
    )

    is_delayed = to_mask(committed["delay_level"].is_valid())
    is_delayed |= to_mask(committed["delay_ms"].is_valid())
    is_delayed |= to_mask(committed["deliver_at"].is_valid())

    immediate = filter_rows(committed, ~is_delayed)
    immediate = immediate.append_column("due_at", pa.nulls(immediate.num_rows, pa.int64()))

    if not is_delayed.any():
        return immediate

    values = delay.delay_parameters(epoch_at, parameters)
    delayed = run(_DUE_AT, values, committed=filter_rows(committed, is_delayed))
    return pa.concat_tables([immediate, delayed.cast(immediate.schema)])


def _remaining_halves(halves: pa.Table, ends: pa.Table, answers: pa.Table) -> pa.Table:
    """Returns the halves without an operation that ends them, as they are after this epoch.

    Output: HALVES.
    """
    is_discarded = to_mask(pc.equal(ends["outcome"], DISCARDED)).any()

    if not (is_discarded or answers.num_rows):
        return halves
    return run(_REMAINING, halves=halves, ends=ends, answers=answers).cast(HALVES)


def _outcomes(ends: pa.Table, placements: pa.Table) -> pa.Table:
    """Returns the ends in offset order, and where messages that are delivered at once stand."""
    ends = ends.select([name for name in OUTCOMES.names if name in ends.column_names])

    order = np.argsort(row_keys(ends), kind="stable")
    if (np.diff(order) != 1).any():
        ends = ends.take(pa.array(order))

    is_message = to_mask(pc.equal(placements["source"], "half"))
    is_message &= to_mask(placements["reason"].is_null())

    of_message = ["queue_id", "queue_offset", "real_queue_id", "real_queue_offset"]
    messages = filter_rows(placements.select(of_message), is_message)

    at = index_of(row_keys(ends), row_keys(messages))
    at[~to_mask(pc.equal(ends["outcome"], COMMITTED))] = -1

    placed = take(messages.select(of_message[2:]), at)

    return build_frame(OUTCOMES, ends, **{name: placed[name] for name in placed.column_names})


def _delayed_halves(committed: pa.Table, epoch_at: int) -> pa.Table:
    """Returns the committed halves that are due later. Output: DELAYED."""
    if committed["due_at"].null_count == committed.num_rows:
        return DELAYED.empty_table()
    return run(
        """
        SELECT 'half' AS source, queue_id, queue_offset, due_at AS deliver_at, real_topic,
          real_queue_id, producer_group
        FROM committed WHERE due_at > $epoch_at ORDER BY queue_id, queue_offset
        """,
        {"epoch_at": epoch_at},
        committed=committed,
    ).cast(DELAYED)


def _command_results(
    command_effects: commands.CommandEffects, still_undeliverable: Collection[int]
) -> pa.Table:
    """Returns the commands' results; the delivery says which messages are still undeliverable."""
    rows = command_effects.results.to_pylist()
    for row in rows:
        offset = row["admin_offset"]
        if command_effects.duplicate_of.get(offset, offset) in still_undeliverable:
            row["result"] = "still_undeliverable"
    return pa.Table.from_pylist(rows, schema=COMMAND_RESULTS)


def _cancelled_deliveries(cancelled: pa.Table) -> pa.Table:
    """Returns the rows of the messages that commands cancelled. Output: DELIVERIES."""
    return pa.Table.from_pylist(
        [{**row, "action": "CANCELLED", "real_queue_id": None} for row in cancelled.to_pylist()],
        schema=DELIVERIES,
    )
