"""What is delivered where: the real topic, its queue and its queue offset.

Order within an epoch: due delayed messages by (deliver_at, source, queue, offset), then committed
halves by (op queue, op offset, position, TRAN_SEQ), then resumed messages by their offset in
TRANS_UNDELIVERABLE_TOPIC. Discards have their own topic, in the order of their places. Queue
offsets are contiguous from 0.

Source: CommitLog's queue offsets (one counter a queue); PROTOCOL.md "Delivery".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import (
    DELAYED,
    DELIVERIES,
    NEXT_OFFSETS,
    PLACEMENTS,
    TOPICS,
    Parameters,
    State,
)
from checker.frames_ops.columns import (
    Numbers,
    build_frame,
    case_when,
    filter_rows,
    to_int64,
    to_mask,
)
from checker.frames_ops.sql import run
from checker.rules.topics import first_used
from storage.schemas import row_keys
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

_WANTED_ROWS = pa.schema([field for field in PLACEMENTS if field.name != "real_queue_offset"])
_ORDERED_ROWS = pa.schema(
    [("phase", pa.int32()),
     *(DELAYED.field(name) for name in ("source", "queue_id", "queue_offset", "real_topic",
                                        "real_queue_id", "producer_group")),
     ("admin_offset", pa.int64())]
)  # fmt: skip


# Rows for delivered and undeliverable messages, but for those delivered straight from a commit.
_DELIVERIES = """
SELECT o.source, o.queue_id, o.queue_offset,
  CASE WHEN o.reason IS NULL THEN 'DELIVERED' ELSE 'UNDELIVERABLE' END AS action,
  o.real_topic, p.real_queue_id, p.real_queue_offset, o.admin_offset, o.rank
FROM told o JOIN placements p
  ON o.source = p.source AND o.queue_id = p.queue_id AND o.queue_offset = p.queue_offset
  AND p.reason IS NOT DISTINCT FROM o.reason
ORDER BY rank
"""


def in_order(due_delayed: pa.Table, committed: pa.Table, resumed: pa.Table) -> pa.Table:
    """Returns all messages to deliver, in the order of the epoch.

    Output: phase, source, queue_id, queue_offset, real_topic, real_queue_id, producer_group,
    admin_offset, rank.
    """
    by_time = [
        to_int64(due_delayed["deliver_at"]),
        ~to_mask(pc.equal(due_delayed["source"], "half")),
        row_keys(due_delayed),
    ]
    by_operation = [
        row_keys(committed, "op_queue_offset"),
        to_int64(committed["position"]),
        to_int64(committed["tran_seq"], null=0),
    ]
    ordered = pa.concat_tables(
        [
            _phase(due_delayed, by_time, phase=1, admin_offset=None),
            _phase(committed, by_operation, phase=2, source="half", admin_offset=None),
            _phase(resumed, [to_int64(resumed["undeliverable_offset"])], phase=3),
        ]
    )
    return ordered.append_column("rank", pa.array(np.arange(1, ordered.num_rows + 1)))


def _phase(rows: pa.Table, keys: Sequence[Numbers], **values: Any) -> pa.Table:
    """Returns the messages of a phase, sorted by these keys. Input: what all its messages have."""
    order = np.lexsort(keys[::-1])
    if (np.diff(order) != 1).any():
        rows = rows.take(pa.array(order))
    return build_frame(_ORDERED_ROWS, rows, **values)


@dataclass(frozen=True)
class Delivered:
    """The messages that an epoch delivers, and those that it cannot deliver.

    `placements`: PLACEMENTS; `new_topics`: TOPICS. `deliveries` (DELIVERIES): messages delivered or
    found undeliverable, but for those delivered straight from a commit. `still_undeliverable`: the
    `admin_offset` of commands that resume a message which is still undeliverable.
    """

    placements: pa.Table = field(default_factory=PLACEMENTS.empty_table)
    new_topics: pa.Table = field(default_factory=TOPICS.empty_table)
    deliveries: pa.Table = field(default_factory=DELIVERIES.empty_table)
    still_undeliverable: Sequence[int] = ()


def deliver(
    ordered: pa.Table,
    discarded: pa.Table,
    state: State,
    requested_topics: dict[str, int],
    parameters: Parameters,
) -> Delivered:
    """Returns where messages go: those to deliver now and the copies of first discards.

    Input: the frame of `in_order`; discarded halves with their `cause`; `requested_topics`: queue
    counts of the topics that an operator makes in this epoch.
    """
    if not (ordered.num_rows or discarded.num_rows or requested_topics):
        return Delivered()
    known = dict(
        zip(state.topics["topic"].to_pylist(), state.topics["queue_count"].to_pylist(), strict=True)
    )
    used = first_used(ordered, state.topics, {*known, *requested_topics}, parameters)
    made = requested_topics | dict.fromkeys(used.group_by_topic, parameters.default_queue_count)
    routed = route(ordered, known | made, used.refused, parameters)
    is_stuck = to_mask(routed["reason"].is_valid())
    if discarded.num_rows and CHECK_MAX_TOPIC not in known:
        made[CHECK_MAX_TOPIC] = 1
    if is_stuck.any() and UNDELIVERABLE_TOPIC not in known:
        made[UNDELIVERABLE_TOPIC] = 1
    placements = assign_offsets(routed, discarded, state.next_offsets)
    phase = to_int64(routed["phase"])
    return Delivered(
        placements,
        _with_table_ids(state.topics, made, used.group_by_topic),
        _deliveries(filter_rows(routed, (phase != 2) | is_stuck), placements),
        filter_rows(routed.select(["admin_offset"]), (phase == 3) & is_stuck)[
            "admin_offset"
        ].to_pylist(),
    )


def _deliveries(reported: pa.Table, placements: pa.Table) -> pa.Table:
    if reported.num_rows == 0:
        return DELIVERIES.empty_table()
    return (
        run(_DELIVERIES, told=reported, placements=placements).drop_columns("rank").cast(DELIVERIES)
    )


def _with_table_ids(
    topics: pa.Table, queue_counts: dict[str, int], group_by_topic: Mapping[str, str]
) -> pa.Table:
    """Returns the topics to make; their ids follow the order of names. Output: TOPICS."""
    first = 1 + max(topics["table_id"].to_pylist(), default=0)
    return pa.Table.from_pylist(
        [
            {"topic": name, "table_id": first + place, "queue_count": queue_counts[name],
             "producer_group": group_by_topic.get(name)}
            for place, name in enumerate(sorted(queue_counts))
        ],
        schema=TOPICS,
    )  # fmt: skip


def route(
    ordered: pa.Table,
    queue_counts: Mapping[str, int],
    refused: Collection[str],
    parameters: Parameters,
) -> pa.Table:
    """Returns each message with its queue, and the `reason` why its topic cannot take it, or null.

    Input: `queue_counts`: of all topics that exist; `refused`: topics that were not made because
    of `group_topics_max`.
    """
    names = ordered["real_topic"].combine_chunks().dictionary_encode()
    by_name = names.dictionary.to_pylist()
    default = parameters.default_queue_count
    topic = names.indices.to_numpy()
    queue_count = np.array([queue_counts.get(name, default) for name in by_name], np.int64)[topic]
    is_known = np.array([name in queue_counts for name in by_name], bool)[topic]
    is_refused = np.array([name in refused for name in by_name], bool)[topic]
    asked = to_int64(ordered["real_queue_id"])
    is_beyond = (np.maximum(asked, 0) >= queue_count) & (is_known | parameters.auto_create_topics)
    reason = case_when(
        [
            (is_beyond, "queue_out_of_range"),
            (is_refused, "group_topics_max"),
            (~is_known, "topic_not_allowed"),
        ]
    )
    target = np.where(asked >= 0, asked, to_int64(ordered["queue_offset"]) % queue_count)
    return ordered.append_column("reason", reason).append_column(
        "target_queue_id", pa.array(target.astype(np.int32))
    )


def assign_offsets(routed: pa.Table, discarded: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Returns every message with its queue offset.

    Output: PLACEMENTS, by topic, queue and offset. A resumed message that is still undeliverable
    stays where it is and has no row.
    """
    is_fine = to_mask(routed["reason"].is_null())
    is_placed = is_fine | (to_int64(routed["phase"]) < 3)
    routed, is_fine = filter_rows(routed, is_placed), is_fine[is_placed]
    fine = pa.array(is_fine)
    discarded = discarded.take(pa.array(np.argsort(row_keys(discarded))))
    wanted = pa.concat_tables(
        [
            _unnumbered(routed, pc.if_else(fine, routed["real_topic"], UNDELIVERABLE_TOPIC),
                    pc.if_else(fine, routed["target_queue_id"], 0), routed["source"],
                    routed["reason"]),
            _unnumbered(discarded, CHECK_MAX_TOPIC, 0, "half", discarded["cause"]),
        ]
    )  # fmt: skip
    return _numbered_in_queues(wanted, next_offsets)


def _unnumbered(rows: pa.Table, topic: Any, queue_id: Any, source: Any, reason: Any) -> pa.Table:
    """Returns messages with their real queue, still without queue offsets."""
    return build_frame(
        _WANTED_ROWS,
        rows,
        topic=topic,
        real_queue_id=queue_id,
        source=source,
        asked_queue_id=rows["real_queue_id"],
        reason=reason,
    )


def _numbered_in_queues(wanted: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Returns the messages with their queue offsets, counted on in each real queue in row order."""
    names = wanted["topic"].combine_chunks().dictionary_encode()
    by_name = names.dictionary.to_pylist()
    in_name_order = np.argsort(np.argsort(by_name)) if by_name else np.array([], np.int64)
    topic = names.indices.to_numpy()
    queue = (in_name_order[topic] << 32) | to_int64(wanted["real_queue_id"])
    order = np.argsort(queue, kind="stable")
    wanted, queue = wanted.take(pa.array(order)), queue[order]
    starts = np.flatnonzero(np.diff(queue, prepend=-1))
    counts = np.diff(starts, append=len(queue))
    near = next_offsets.filter(pc.is_in(next_offsets["topic"], pa.array(by_name, pa.string())))
    reached = {(row["topic"], row["queue_id"]): row["next_offset"] for row in near.to_pylist()}
    heads = wanted.select(["topic", "real_queue_id"]).take(pa.array(starts)).to_pylist()
    first = [reached.get((row["topic"], row["real_queue_id"]), 0) for row in heads]
    offsets = np.arange(len(queue)) + np.repeat(np.array(first, np.int64) - starts, counts)
    place = PLACEMENTS.get_field_index("real_queue_offset")
    return wanted.add_column(place, PLACEMENTS.field(place), pa.array(offsets)).cast(PLACEMENTS)


def advance_offsets(next_offsets: pa.Table, placements: pa.Table) -> pa.Table:
    """Returns the next offset of each real queue after the placements. Output: NEXT_OFFSETS."""
    if placements.num_rows == 0:
        return next_offsets
    return run(
        """
        SELECT topic, queue_id, max(next_offset) AS next_offset FROM (
          SELECT * FROM next_offsets
          UNION ALL
          SELECT topic, real_queue_id, real_queue_offset + 1 FROM placements)
        GROUP BY topic, queue_id ORDER BY topic, queue_id
        """,
        next_offsets=next_offsets,
        placements=placements,
    ).cast(NEXT_OFFSETS)
