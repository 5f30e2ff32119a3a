"""The effects of operators' commands: re-arm, resend, resume, cancel, create a topic or alter it.

Commands take effect in offset order, before the operations of the epoch that lands them. A command
without a matching target changes nothing, and its result says so.

Source: docs/protocol/rules.md "Operator commands"; RocketMQ's resumeCheckHalfMessage, which puts a
half back without its checks; `txlake.protocol` reads the targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import (
    COMMAND_RESULTS,
    DELAYED,
    HALVES,
    UNDELIVERABLE,
    Inputs,
    Parameters,
    State,
)
from checker.frames_ops.sql import select
from txlake.protocol import (
    CANCEL,
    MAINTAIN,
    NO_TOPICS,
    PING,
    QUEUE_COUNT_MAX,
    RESEND,
    SYSTEM_REAL_TOPICS,
    UNDELIVERABLE_TOPIC,
    ConfigTarget,
    LostTarget,
    RecordTarget,
    TopicTarget,
    UndeliverableTarget,
    command_target,
    is_own_topic,
)


@dataclass(frozen=True)
class CommandEffects:
    """The state after the commands of an epoch, and their other effects.

    `cancelled` and `resumed` carry `admin_offset`. `duplicate_of`: from a command that resumes a
    message again to the command that resumed it first, by `admin_offset`. `topics`: the queue
    counts of topics to make.
    """

    state: State
    cancelled: pa.Table
    resumed: pa.Table
    duplicate_of: dict[int, int]
    topics: dict[str, int]
    resized: pa.Table
    results: pa.Table


def apply_commands(
    inputs: Inputs, state: State, epoch_at: int, parameters: Parameters
) -> CommandEffects:
    """Returns what the epoch's commands do to the state before it, in offset order.

    Input: COMMANDS and the messages that they name (UNDELIVERABLE); State.
    Replay: the same input gives the same result.
    """
    commands = _Commands(inputs.undeliverable, state, epoch_at, parameters)
    results = [
        {"admin_offset": row["admin_offset"], "result": row["error"] or commands.apply(row)}
        for row in sorted(inputs.commands.to_pylist(), key=lambda row: row["admin_offset"])
    ]

    topics = commands.state.topics
    return CommandEffects(
        state=commands.state,
        cancelled=pa.concat_tables(commands.cancelled),
        resumed=pa.concat_tables(commands.resumed),
        duplicate_of=commands.duplicate_of,
        topics=commands.topics,
        resized=topics.filter(pc.not_equal(topics["queue_count"], state.topics["queue_count"])),
        results=pa.Table.from_pylist(results, schema=COMMAND_RESULTS),
    )


def _with_offset(rows: pa.Table, admin_offset: int) -> pa.Table:
    return rows.append_column("admin_offset", pa.array([admin_offset] * rows.num_rows, pa.int64()))


class _Commands:
    """The state after the commands applied so far, and their other effects."""

    def __init__(
        self, undeliverable: pa.Table, state: State, epoch_at: int, parameters: Parameters
    ) -> None:
        self.state = state
        self.cancelled = [_with_offset(DELAYED.empty_table(), 0)]
        self.resumed = [_with_offset(UNDELIVERABLE.empty_table(), 0)]
        self.duplicate_of: dict[int, int] = {}
        self.topics: dict[str, int] = {}
        self._resumed_by: dict[int, int] = {}

        self._undeliverable = undeliverable
        self._epoch_at = epoch_at
        self._parameters = parameters

    def apply(self, row: dict[str, Any]) -> str:
        """Applies a readable command and returns its result."""
        if row["command"] in (MAINTAIN, PING):
            return "accepted"

        match command_target(row["command"], row["target"]):
            case None:
                return "bad_target"
            case LostTarget():  # the shell reads what Kafka still has; the rows that land decide
                return "noted"
            case TopicTarget() as topic:
                return self._create_topic(topic)
            case ConfigTarget() as config:
                return self._alter_topic(config)
            case UndeliverableTarget() as message:
                return self._resume(message, row["admin_offset"])
            case record if row["command"] == CANCEL:
                return self._cancel(record, row["admin_offset"])
            case half if row["command"] == RESEND:
                return "resent" if self._rearm(half, is_discarded=False) else "not_pending"
            case half:
                return "rearmed" if self._rearm(half, is_discarded=True) else "not_discarded"

    def _cancel(self, target: RecordTarget, admin_offset: int) -> str:
        is_named = (
            (pc.field("source") == target.kind)
            & (pc.field("queue_id") == target.queue_id)
            & (pc.field("queue_offset") == target.queue_offset)
        )
        rows = self.state.delayed.filter(is_named)
        if rows.num_rows:
            self.state = replace(self.state, delayed=self.state.delayed.filter(~is_named))

        self.cancelled.append(_with_offset(rows, admin_offset))
        return "cancelled" if rows.num_rows else "not_delayed"

    def _resume(self, target: UndeliverableTarget, admin_offset: int) -> str:
        is_named = pc.field("undeliverable_offset") == target.queue_offset
        rows = self._undeliverable.filter(is_named)

        first = self._resumed_by.setdefault(target.queue_offset, admin_offset)
        if first == admin_offset:
            self.resumed.append(_with_offset(rows, admin_offset))
        else:
            self.duplicate_of[admin_offset] = first

        return "resumed" if rows.num_rows else "not_undeliverable"

    def _create_topic(self, target: TopicTarget) -> str:
        topic = target.topic
        count = target.queue_count
        parameters = self._parameters

        is_own = is_own_topic(topic, parameters.own_topics, parameters.check_topic_prefix)
        is_allowed = not is_own and topic not in (*SYSTEM_REAL_TOPICS, *NO_TOPICS)
        if not (is_allowed and 1 <= count <= QUEUE_COUNT_MAX):
            return "bad_target"

        topics = self.state.topics
        names = topics["topic"].to_pylist()
        counts = topics["queue_count"].to_pylist()

        if topic not in names:
            self.topics[topic] = max(count, self.topics.get(topic, 0))
            return "created"

        at = names.index(topic)
        if count <= counts[at]:
            return "unchanged"

        counts[at] = count
        column = topics.schema.get_field_index("queue_count")
        resized = topics.set_column(column, "queue_count", pa.array(counts, pa.int32()))

        self.state = replace(self.state, topics=resized)
        return "grown"

    def _alter_topic(self, target: ConfigTarget) -> str:
        """Returns whether a topic can be altered; how long it keeps rows decides nothing."""
        if target.value == 0 or target.topic == UNDELIVERABLE_TOPIC:
            return "bad_target"

        topics = {*self.state.topics["topic"].to_pylist(), *self.topics}
        return "altered" if target.topic in topics else "no_such_topic"

    def _rearm(self, target: RecordTarget, *, is_discarded: bool) -> bool:
        """Re-arms the unit of a half, if it is discarded or pending as asked. Returns if it did."""
        halves = self.state.halves
        cause = pc.field("discard_cause")

        named = halves.filter(
            (pc.field("queue_id") == target.queue_id)
            & (pc.field("queue_offset") == target.queue_offset)
            & (cause.is_valid() if is_discarded else cause.is_null())
        )
        if named.num_rows == 0:
            return False
        values = {
            "queue_id": target.queue_id,
            "unit": named["unit_offset"][0].as_py(),
            "epoch_at": self._epoch_at,
        }
        self.state = replace(self.state, halves=select(HALVES, _REARMED, values, halves=halves))
        return True


# All halves; those of one unit are pending again as if they were stored at `epoch_at`.
_REARMED = """
SELECT * EXCLUDE (named) REPLACE (
  CASE WHEN named THEN arm + 1 ELSE arm END::INTEGER AS arm,
  CASE WHEN named THEN $epoch_at ELSE stored_at END::BIGINT AS stored_at,
  CASE WHEN named THEN $epoch_at ELSE age_from_at END::BIGINT AS age_from_at,
  CASE WHEN named THEN 0 ELSE check_times END::INTEGER AS check_times,
  CASE WHEN named THEN 0 ELSE unacknowledged END::INTEGER AS unacknowledged,
  CASE WHEN NOT named THEN checked_at END AS checked_at,
  CASE WHEN NOT named THEN discard_cause END AS discard_cause)
FROM (SELECT *, queue_id = $queue_id AND unit_offset = $unit AS named FROM halves)
"""
