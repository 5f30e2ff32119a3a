"""The counts of an epoch's decision, and of the halves of a state: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import COMMITTED, DISCARDED, ROLLED_BACK, Decision, Inputs, State
from checker.frames_ops.columns import filter_rows, index_of, to_int64, to_mask
from pipelines.epoch.batch import oldest_stored_at
from pipelines.metrics.groups import GroupReplies
from storage.schemas import row_keys
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake.protocol import SYSTEM_REAL_TOPICS, UNDELIVERABLE_TOPIC

# Upper bounds in s, as fine as an epoch and as long as a half waits; RocketMQ's are among them.
LATENCY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
_ENDED = (COMMITTED, ROLLED_BACK)
_LOGGED = ["queue_id", "queue_offset", "real_topic", "producer_group", "transaction_id", "cause"]


@dataclass(frozen=True)
class Latency:
    """How long halves waited for their end. `counts`: by bound of LATENCY_S, and beyond the last.

    Units: s.
    """

    counts: tuple[int, ...] = (0,) * (len(LATENCY_S) + 1)
    total_s: float = 0.0

    def __add__(self, more: Latency) -> Latency:
        counts = tuple(a + b for a, b in zip(self.counts, more.counts, strict=True))
        return Latency(counts, self.total_s + more.total_s)


@dataclass(frozen=True)
class EpochCounts:
    """The counts of one epoch.

    `ends`: by real topic and outcome. `discards` and `undeliverable`: the first rows, to be logged
    one by one, of all that were discarded (`causes`) or became undeliverable
    (`undeliverable_count`). `resumed_count`: undeliverable messages that are delivered now.
    Units: ms.
    """

    ends: Mapping[tuple[str, str], int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, Latency] = field(default_factory=dict)
    conflicts: Mapping[str, int] = field(default_factory=dict)
    delivered: Mapping[str, int] = field(default_factory=dict)
    unreadable: Mapping[str, int] = field(default_factory=dict)
    answers: int = 0
    replies: GroupReplies = field(default_factory=GroupReplies)
    undeliverable_count: int = 0
    resumed_count: int = 0
    oldest_stored_at: int | None = None
    discards: tuple[Mapping[str, Any], ...] = ()
    undeliverable: tuple[Mapping[str, Any], ...] = ()

    def count_ended(self, outcome: str) -> int:
        """Returns how many halves have this outcome."""
        return sum(count for (_, other), count in self.ends.items() if other == outcome)


@dataclass(frozen=True)
class Pending:
    """How many halves wait, by real topic, and are discarded; when the oldest were stored.

    `oldest_by_group`: when the oldest half of each producer group that waits was stored.
    Units: ms.
    """

    by_topic: Mapping[str, int]
    oldest_by_group: Mapping[str, int]
    oldest_at: int | None
    given_up: int
    given_up_oldest_at: int | None


def count_epoch(
    before: State, inputs: Inputs, decision: Decision, epoch_at: int, rows_max: int
) -> EpochCounts:
    """Returns the counts of an epoch.

    Input: the state before it; `rows_max`: the rows of each kind that are logged one by one.
    """
    outcomes = decision.outcomes
    placements = decision.placements
    operations = inputs.operations

    ends = {
        (topic, outcome): count
        for outcome in (*_ENDED, DISCARDED)
        for topic, count in _counts(_with_outcome(outcomes, outcome)["real_topic"]).items()
    }
    discarded = _with_outcome(outcomes, DISCARDED)

    undeliverable = filter_rows(
        placements, to_mask(pc.equal(placements["topic"], UNDELIVERABLE_TOPIC))
    )
    is_ours = pc.is_in(placements["topic"], pa.array(SYSTEM_REAL_TOPICS))

    answers = filter_rows(
        operations,
        to_mask(pc.equal(operations["cause"], "check_answer"))
        & to_mask(operations["error"].is_null()),
    )
    kinds = {
        HALF: inputs.halves,
        OP: operations,
        SCHEDULE: inputs.schedules,
        ADMIN: inputs.commands,
    }

    return EpochCounts(
        ends=ends,
        causes=_counts(discarded["cause"]),
        latencies=_latencies(before, inputs, outcomes, epoch_at),
        conflicts=_counts(decision.conflicts["reason"]),
        delivered=_counts(filter_rows(placements, ~to_mask(is_ours))["topic"]),
        unreadable={kind: rows.num_rows - rows["error"].null_count for kind, rows in kinds.items()},
        answers=answers.num_rows,
        replies=GroupReplies(decision.changes["halves"].put, outcomes),
        undeliverable_count=undeliverable.num_rows,
        resumed_count=_count_resumed(decision.deliveries),
        oldest_stored_at=oldest_stored_at((inputs.halves, operations, inputs.schedules)),
        discards=tuple(discarded.slice(0, rows_max).select(_LOGGED).to_pylist()),
        undeliverable=tuple(undeliverable.slice(0, rows_max).to_pylist()),
    )


def pending_of(halves: pa.Table) -> Pending:
    """Returns the counts of a state. Input: HALVES."""
    is_pending = to_mask(halves["discard_cause"].is_null())
    narrow = halves.select(["real_topic", "producer_group", "stored_at"])
    rows = filter_rows(narrow, is_pending)
    given_up = filter_rows(narrow, ~is_pending)
    groups = rows.group_by("producer_group").aggregate([("stored_at", "min")]).to_pylist()

    return Pending(
        _counts(rows["real_topic"]),
        {group["producer_group"]: group["stored_at_min"] for group in groups},
        pc.min(rows["stored_at"]).as_py(),
        given_up.num_rows,
        pc.min(given_up["stored_at"]).as_py(),
    )


def _with_outcome(outcomes: pa.Table, outcome: str) -> pa.Table:
    return filter_rows(outcomes, to_mask(pc.equal(outcomes["outcome"], outcome)))


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    return {row["values"]: row["counts"] for row in pc.value_counts(values).to_pylist()}


def _count_resumed(deliveries: pa.Table) -> int:
    """Returns how many undeliverable messages are delivered at an operator's command."""
    is_delivered = to_mask(pc.equal(deliveries["action"], "DELIVERED"))
    return int(np.count_nonzero(is_delivered & to_mask(deliveries["admin_offset"].is_valid())))


def _latencies(
    before: State, inputs: Inputs, outcomes: pa.Table, epoch_at: int
) -> dict[str, Latency]:
    """Returns the waits of the committed and rolled back halves, by real topic."""
    ended = filter_rows(outcomes, to_mask(pc.is_in(outcomes["outcome"], pa.array(_ENDED))))
    ended = filter_rows(ended, to_mask(ended["real_topic"].is_valid()))
    if not ended.num_rows:
        return {}

    keys = row_keys(ended)
    stored_at = np.full(len(keys), -1, np.int64)

    for rows in (inputs.halves, before.halves):
        indices = index_of(row_keys(rows), keys)
        stored_at[indices[indices >= 0]] = to_int64(rows["stored_at"])[indices >= 0]
        if (stored_at >= 0).all():  # most ends come with their half, or soon after
            break

    topics = ended["real_topic"].combine_chunks().dictionary_encode()
    seconds = np.maximum(epoch_at - stored_at, 0) / 1000
    topic = topics.indices.to_numpy()
    width = len(LATENCY_S) + 1
    bucket = np.searchsorted(np.array(LATENCY_S), seconds)

    is_known = stored_at >= 0
    cells = (topic * width + bucket)[is_known]
    names = topics.dictionary.to_pylist()
    counts = np.bincount(cells, minlength=len(names) * width).reshape(len(names), width)
    sums = np.bincount(topic[is_known], seconds[is_known], len(names))

    return {
        name: Latency(tuple(map(int, counts[number])), float(sums[number]))
        for number, name in enumerate(names)
        if counts[number].any()
    }
