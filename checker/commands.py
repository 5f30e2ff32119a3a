"""What an operator's commands do: re-arm, resume, cancel, make a topic.

Commands take effect in offset order, before the operations of the epoch that lands them. A command
that fits nothing changes nothing and says so in its result.

Targets: `half:<queue>-<offset>`, `schedule:<queue>-<offset>`, `undeliverable:<offset>`,
`topic:<name>:<queue count>`. Source: PROTOCOL.md "Operator commands".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import COMMAND_RESULTS, DELAYED, UNDELIVERABLE, Inputs, Parameters, State
from checker.sql import run
from txlake.protocol import (
    CANCEL,
    CREATE_TOPIC,
    MAINTAIN,
    PING,
    RESUME,
    SYSTEM_REAL_TOPICS,
    TOPIC_PATTERN,
    is_own_topic,
)

QUEUE_COUNT_MAX = 10_000
TARGETS = {
    RESUME: re.compile(
        r"half:(?P<queue>[0-9]{1,9})-(?P<offset>[0-9]{1,18})|undeliverable:(?P<place>[0-9]{1,18})"
    ),
    CANCEL: re.compile(r"(?P<source>half|schedule):(?P<queue>[0-9]{1,9})-(?P<offset>[0-9]{1,18})"),
    CREATE_TOPIC: re.compile(rf"topic:(?P<topic>{TOPIC_PATTERN}):(?P<count>[0-9]{{1,5}})"),
}


@dataclass(frozen=True)
class Commanded:
    """What the commands of an epoch change: the state after them, and what they ask for.

    `cancelled` and `resumed` carry `admin_offset`; `repeated` leads from a command that resumes the
    same message again to the first; `topics` are the queue counts of topics to make.
    """

    state: State
    cancelled: pa.Table
    resumed: pa.Table
    repeated: dict[int, int]
    topics: dict[str, int]
    grown: pa.Table
    results: pa.Table


def _with_offset(frame: pa.Table, offsets: list[int]) -> pa.Table:
    return frame.append_column("admin_offset", pa.array(offsets, pa.int64()))


def apply_commands(
    inputs: Inputs, state: State, epoch_at: int, parameters: Parameters
) -> Commanded:
    """Apply the epoch's commands to the state before it, in offset order.

    Input: COMMANDS and what they name (UNDELIVERABLE), State. A replay gives the same.
    """
    results: list[dict[str, object]] = []
    cancelled = [_with_offset(DELAYED.empty_table(), [])]
    resumed = [_with_offset(UNDELIVERABLE.empty_table(), [])]
    resumed_by: dict[int, int] = {}
    repeated: dict[int, int] = {}
    wanted: dict[str, int] = {}
    topics_before = state.topics
    for row in sorted(inputs.commands.to_pylist(), key=lambda row: row["admin_offset"]):
        offset, command = row["admin_offset"], row["command"]
        found = TARGETS[command].fullmatch(row["target"] or "") if command in TARGETS else None
        if row["error"] is not None:
            result = row["error"]
        elif command in (MAINTAIN, PING):
            result = "accepted"
        elif found is None:
            result = "bad_target"
        elif command == CREATE_TOPIC:
            topic, count = found["topic"], int(found["count"])
            if is_own_topic(topic, parameters.own_topics, parameters.check_topic_prefix):
                result = "bad_target"
            else:
                state, result = _create_topic(state, wanted, topic, count)
        elif command == CANCEL:
            rows = _of(state.delayed, found["source"], int(found["queue"]), int(found["offset"]))
            result = "cancelled" if rows.num_rows else "not_delayed"
            cancelled.append(_with_offset(rows, [offset] * rows.num_rows))
            state = _without(state, rows)
        elif found["place"] is not None:
            place = pc.equal(inputs.undeliverable["undeliverable_offset"], int(found["place"]))
            rows = inputs.undeliverable.filter(place)
            first = resumed_by.setdefault(int(found["place"]), offset)
            if first == offset:
                resumed.append(_with_offset(rows, [offset] * rows.num_rows))
            else:
                repeated[offset] = first
            result = "resumed" if rows.num_rows else "not_undeliverable"
        else:
            state, result = _rearm(state, int(found["queue"]), int(found["offset"]), epoch_at)
        results.append({"admin_offset": offset, "result": result})
    grown = state.topics.filter(
        pc.invert(pc.equal(state.topics["queue_count"], topics_before["queue_count"]))
    )
    return Commanded(
        state=state,
        cancelled=pa.concat_tables(cancelled),
        resumed=pa.concat_tables(resumed),
        repeated=repeated,
        topics=wanted,
        grown=grown,
        results=pa.Table.from_pylist(results, schema=COMMAND_RESULTS),
    )


def _of(delayed: pa.Table, source: str, queue_id: int, queue_offset: int) -> pa.Table:
    return delayed.filter(
        (pc.field("source") == source)
        & (pc.field("queue_id") == queue_id)
        & (pc.field("queue_offset") == queue_offset)
    )


def _without(state: State, rows: pa.Table) -> State:
    delayed = run(
        """
        SELECT d.* FROM delayed d ANTI JOIN rows r
          ON d.source = r.source AND d.queue_id = r.queue_id AND d.queue_offset = r.queue_offset
        """,
        delayed=state.delayed,
        rows=rows,
    )
    return State(state.halves, state.waiting, delayed, state.topics, state.next_offsets)


def _create_topic(
    state: State, wanted: dict[str, int], topic: str, count: int
) -> tuple[State, str]:
    if topic in SYSTEM_REAL_TOPICS or topic in (".", "..") or not 1 <= count <= QUEUE_COUNT_MAX:
        return state, "bad_target"
    counts = dict(
        zip(state.topics["topic"].to_pylist(), state.topics["queue_count"].to_pylist(), strict=True)
    )
    if topic not in counts:
        wanted[topic] = max(count, wanted.get(topic, 0))
        return state, "created"
    if count <= counts[topic]:
        return state, "unchanged"
    counts[topic] = count
    column = pa.array([counts[name] for name in state.topics["topic"].to_pylist()], pa.int32())
    topics = state.topics.set_column(
        state.topics.schema.get_field_index("queue_count"), "queue_count", column
    )
    return State(state.halves, state.waiting, state.delayed, topics, state.next_offsets), "grown"


def _rearm(state: State, queue_id: int, queue_offset: int, epoch_at: int) -> tuple[State, str]:
    named = run(
        "SELECT unit_offset FROM halves WHERE queue_id = $queue_id AND queue_offset = $offset"
        " AND discard_cause IS NOT NULL",
        {"queue_id": queue_id, "offset": queue_offset},
        halves=state.halves,
    )
    if named.num_rows == 0:
        return state, "not_discarded"
    halves = run(
        """
        SELECT * EXCLUDE (named) REPLACE (
          CASE WHEN named THEN arm + 1 ELSE arm END::INTEGER AS arm,
          CASE WHEN named THEN $epoch_at ELSE stored_at END::BIGINT AS stored_at,
          CASE WHEN named THEN 0 ELSE check_times END::INTEGER AS check_times,
          CASE WHEN NOT named THEN checked_at END AS checked_at,
          CASE WHEN NOT named THEN discard_cause END AS discard_cause)
        FROM (SELECT *, queue_id = $queue_id AND unit_offset = $unit AS named FROM halves)
        """,
        {
            "queue_id": queue_id,
            "unit": named["unit_offset"][0].as_py(),
            "epoch_at": epoch_at,
        },
        halves=state.halves,
    ).cast(state.halves.schema)
    state = State(halves, state.waiting, state.delayed, state.topics, state.next_offsets)
    return state, "rearmed"
