"""The effects of an epoch's operations: the halves that they end, those that wait, conflicts.

An operation that is not valid for a half leaves the half as it is, and is a conflict with the first
reason that applies.

Source: docs/protocol/rules.md "Which operation ends a half"; RocketMQ's
TransactionalMessageServiceImpl (fillOpRemoveMap), without its order effects
(docs/protocol/rules.md "Different from RocketMQ").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import CONFLICTS, NAMINGS, Inputs, Instants, Parameters
from checker.frames_ops.columns import filter_rows, to_mask
from checker.frames_ops.sql import run, select
from checker.rules.naming import namings, validate
from checker.rules.winner import WINS, choose_winner

_ANSWER_ROWS = pa.schema(
    [("queue_id", pa.int32()), ("unit_offset", pa.int64()), ("answered_at", pa.int64())]
)


@dataclass(frozen=True)
class OperationEffects:
    """The effects of an epoch's operations.

    `wins`: the units that end, with the operation of each; `conflicts` (CONFLICTS); `waiting`: the
    namings that go on waiting (NAMINGS); `answers`: as the function of that name returns them.
    """

    wins: pa.Table
    conflicts: pa.Table
    waiting: pa.Table
    answers: pa.Table


def apply_operations(
    waiting: pa.Table,
    inputs: Inputs,
    halves: pa.Table,
    members: pa.Table,
    units: pa.Table,
    instants: Instants,
    parameters: Parameters,
    after_step: Callable[[], None],
) -> OperationEffects:
    """Returns the effects of the waiting operations, and of those of the epoch.

    Input: NAMINGS, HALVES (new ones included), the frames of `set_members` and `set_units`;
    `after_step`: as `decide` has it.
    """
    all_namings = pa.concat_tables([waiting, namings(inputs.operations, instants.epoch_at)])
    verdicts = validate(
        all_namings,
        waiting.num_rows,
        halves,
        inputs.halves,
        inputs.ended,
        members,
        units,
        instants.queues,
        parameters,
    )
    del all_namings
    after_step()

    judged = choose_winner(verdicts, units, parameters)
    return OperationEffects(
        wins=filter_rows(judged, to_mask(pc.equal(judged["verdict"], WINS))),
        conflicts=conflicts(inputs.operations, verdicts, judged),
        waiting=waiting_namings(verdicts, judged),
        answers=answers(verdicts),
    )


def answers(verdicts: pa.Table) -> pa.Table:
    """Returns the producer's last answer (UNKNOWN) for each unit that can still be ended.

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
    """Returns each naming, or unreadable operation, without effect, with its reason.

    Output: CONFLICTS.
    """
    return select(
        CONFLICTS,
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


def waiting_namings(verdicts: pa.Table, judged: pa.Table) -> pa.Table:
    """Returns the namings that wait for their half or for their set.

    An operation waits for a set at one position; its others that name the set are absorbed.
    Output: NAMINGS.
    """
    return select(
        NAMINGS,
        """
        SELECT v.queue_id, v.op_queue_offset, v.position, v.half_queue_offset, v.decision,
          v.producer_group, v.transaction_id, v.cause, v.stored_at, v.landed_at, v.decided_sets,
          v.is_signed
        FROM verdicts v
        LEFT JOIN (SELECT queue_id, op_queue_offset, position FROM judged
                   WHERE verdict = 'waits') j
          ON v.queue_id = j.queue_id AND v.op_queue_offset = j.op_queue_offset
          AND v.position = j.position
        WHERE v.verdict = 'waits' OR j.queue_id IS NOT NULL
        ORDER BY v.queue_id, v.op_queue_offset, v.position
        """,
        verdicts=verdicts,
        judged=judged,
    )
