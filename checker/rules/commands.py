"""The effects of operators' commands: re-arm, resend, resume, cancel, create a topic or alter it.

Commands take effect in offset order, before the operations of the epoch that lands them. A command
without a matching target changes nothing, and its result says so.

Source: docs/protocol/rules.md "Operator commands"; RocketMQ's resumeCheckHalfMessage, which puts a
half back without its checks; `txlake.protocol` reads the targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import (
    COMMAND_RESULTS,
    HALVES,
    Inputs,
    Parameters,
    State,
)
from checker.frames_ops.columns import filter_rows, take, to_mask
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
    Target,
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
    rows = sorted(inputs.commands.to_pylist(), key=lambda row: row["admin_offset"])
    targets = [command_target(row["command"], row["target"]) for row in rows]
    commands = _Commands(inputs.undeliverable, state, parameters, targets)

    results = [
        {"admin_offset": row["admin_offset"], "result": row["error"] or commands.apply(row, target)}
        for row, target in zip(rows, targets, strict=True)
    ]

    topics = commands.resized_topics()
    return CommandEffects(
        state=replace(
            state,
            topics=topics,
            halves=commands.rearmed_halves(epoch_at),
            delayed=commands.remaining_delayed(),
        ),
        cancelled=_named_rows(state.delayed, commands.cancelled),
        resumed=_named_rows(inputs.undeliverable, commands.resumed),
        duplicate_of=commands.duplicate_of,
        topics=commands.topics,
        resized=topics.filter(pc.not_equal(topics["queue_count"], state.topics["queue_count"])),
        results=pa.Table.from_pylist(results, schema=COMMAND_RESULTS),
    )


def _indices_of(
    rows: pa.Table, keys: Sequence[str], offsets: Collection[int]
) -> dict[tuple[Any, ...], int]:
    """Returns where the rows stand that have one of these offsets, by their keys.

    Input: `keys`: the columns that name a row, the offset last.
    """
    has_offset = pc.is_in(rows[keys[-1]], pa.array(offsets, pa.int64()))
    at = np.flatnonzero(to_mask(has_offset))
    columns = (take(rows.select([key]), at)[key].to_pylist() for key in keys)
    return dict(zip(zip(*columns, strict=True), at.tolist(), strict=True))


def _named_rows(rows: pa.Table, admin_offset_of: dict[int, int]) -> pa.Table:
    """Returns the rows at these indices, each with the `admin_offset` of its command."""
    at = np.fromiter(admin_offset_of, np.int64, len(admin_offset_of))
    admin_offsets = pa.array(admin_offset_of.values(), pa.int64())
    return take(rows, at).append_column("admin_offset", admin_offsets)


class _Commands:
    """The effects of the commands applied so far.

    `cancelled`, `resumed`: from a row's index in `state.delayed` and UNDELIVERABLE to the command.
    """

    def __init__(
        self,
        undeliverable: pa.Table,
        state: State,
        parameters: Parameters,
        targets: Sequence[Target | None],
    ) -> None:
        self.cancelled: dict[int, int] = {}
        self.resumed: dict[int, int] = {}
        self.duplicate_of: dict[int, int] = {}
        self.topics: dict[str, int] = {}

        self._state = state
        self._parameters = parameters
        self._rearm_counts: Counter[tuple[int, int]] = Counter()

        names = state.topics["topic"].to_pylist()
        self._queue_counts = dict(zip(names, state.topics["queue_count"].to_pylist(), strict=True))

        # A frame is searched once for all commands: each alone would read all halves again.
        offsets = [
            target.queue_offset
            for target in targets
            if isinstance(target, RecordTarget | UndeliverableTarget)
        ]
        self._halves = _indices_of(state.halves, ["queue_id", "queue_offset"], offsets)
        self._delayed = _indices_of(state.delayed, ["source", "queue_id", "queue_offset"], offsets)
        self._undeliverable = _indices_of(undeliverable, ["undeliverable_offset"], offsets)

    def apply(self, row: dict[str, Any], target: Target | None) -> str:
        """Applies a readable command and returns its result."""
        if row["command"] in (MAINTAIN, PING):
            return "accepted"

        match target:
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

    def rearmed_halves(self, epoch_at: int) -> pa.Table:
        """Returns all halves; those of re-armed units are pending as if stored at `epoch_at`."""
        if not self._rearm_counts:
            return self._state.halves

        rearmed = pa.table(
            {
                "queue_id": pa.array([queue_id for queue_id, _ in self._rearm_counts], pa.int32()),
                "unit_offset": pa.array([unit for _, unit in self._rearm_counts], pa.int64()),
                "times": pa.array(self._rearm_counts.values(), pa.int32()),
            }
        )
        return select(
            HALVES, _REARMED, {"epoch_at": epoch_at}, halves=self._state.halves, rearmed=rearmed
        )

    def remaining_delayed(self) -> pa.Table:
        """Returns the delayed messages that no command cancelled."""
        is_kept = np.ones(self._state.delayed.num_rows, bool)
        is_kept[list(self.cancelled)] = False
        return filter_rows(self._state.delayed, is_kept)

    def resized_topics(self) -> pa.Table:
        """Returns the topics that there were, with the queue counts that commands give them."""
        topics = self._state.topics
        column = topics.schema.get_field_index("queue_count")
        counts = pa.array(self._queue_counts.values(), pa.int32())
        return topics.set_column(column, topics.schema.field(column), counts)

    def _cancel(self, target: RecordTarget, admin_offset: int) -> str:
        at = self._delayed.get((target.kind, target.queue_id, target.queue_offset))
        if at is None or at in self.cancelled:
            return "not_delayed"

        self.cancelled[at] = admin_offset
        return "cancelled"

    def _resume(self, target: UndeliverableTarget, admin_offset: int) -> str:
        at = self._undeliverable.get((target.queue_offset,))
        if at is None:
            return "not_undeliverable"

        first = self.resumed.setdefault(at, admin_offset)
        if first != admin_offset:
            self.duplicate_of[admin_offset] = first
        return "resumed"

    def _create_topic(self, target: TopicTarget) -> str:
        topic = target.topic
        count = target.queue_count
        parameters = self._parameters

        is_own = is_own_topic(topic, parameters.own_topics, parameters.check_topic_prefix)
        is_allowed = not is_own and topic not in (*SYSTEM_REAL_TOPICS, *NO_TOPICS)
        if not (is_allowed and 1 <= count <= QUEUE_COUNT_MAX):
            return "bad_target"

        if topic not in self._queue_counts:
            self.topics[topic] = max(count, self.topics.get(topic, 0))
            return "created"

        if count <= self._queue_counts[topic]:
            return "unchanged"

        self._queue_counts[topic] = count
        return "grown"

    def _alter_topic(self, target: ConfigTarget) -> str:
        """Returns whether a topic can be altered; how long it keeps rows decides nothing."""
        if target.value == 0 or target.topic == UNDELIVERABLE_TOPIC:
            return "bad_target"

        is_known = target.topic in self._queue_counts or target.topic in self.topics
        return "altered" if is_known else "no_such_topic"

    def _rearm(self, target: RecordTarget, *, is_discarded: bool) -> bool:
        """Re-arms the unit of a half, if it is discarded or pending as asked. Returns if it did."""
        at = self._halves.get((target.queue_id, target.queue_offset))
        if at is None:
            return False

        halves = self._state.halves
        unit = (target.queue_id, halves["unit_offset"][at].as_py())
        was_discarded = halves["discard_cause"][at].is_valid
        if (was_discarded and unit not in self._rearm_counts) != is_discarded:
            return False

        self._rearm_counts[unit] += 1
        return True


_REARMED = """
SELECT halves.* REPLACE (
  CASE WHEN times > 0 THEN arm + times ELSE arm END::INTEGER AS arm,
  CASE WHEN times > 0 THEN $epoch_at ELSE stored_at END::BIGINT AS stored_at,
  CASE WHEN times > 0 THEN $epoch_at ELSE age_from_at END::BIGINT AS age_from_at,
  CASE WHEN times > 0 THEN 0 ELSE check_times END::INTEGER AS check_times,
  CASE WHEN times > 0 THEN 0 ELSE unacknowledged END::INTEGER AS unacknowledged,
  CASE WHEN times IS NULL THEN checked_at END AS checked_at,
  CASE WHEN times IS NULL THEN discard_cause END AS discard_cause)
FROM halves LEFT JOIN rearmed USING (queue_id, unit_offset)
ORDER BY queue_id, queue_offset
"""
