"""Where messages are delivered: the real topic, its queue and its queue offset.

Order within an epoch: due delayed messages by (deliver_at, source, queue, offset), then committed
halves by (op queue, op offset, position, TRAN_SEQ), then resumed messages by their offset in
TRANS_UNDELIVERABLE_TOPIC. Discards have their own topic, in the order of their places. Queue
offsets are contiguous from 0.

Source: CommitLog's queue offsets (one counter a queue); docs/protocol/rules.md "Delivery".
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
from checker.rules.topics import auto_create
from storage.schemas import row_keys
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

_UNNUMBERED_ROWS = pa.schema([field for field in PLACEMENTS if field.name != "real_queue_offset"])
_ORDERED_ROWS = pa.schema(
    [
        ("phase", pa.int32()),
        *(field for field in DELAYED if field.name != "deliver_at"),
        ("admin_offset", pa.int64()),
    ]
)

# Rows for delivered and undeliverable messages, but for those delivered straight from a commit.
_DELIVERIES = """
SELECT o.source, o.queue_id, o.queue_offset,
  CASE WHEN o.reason IS NULL THEN 'DELIVERED' ELSE 'UNDELIVERABLE' END AS action,
  o.real_topic, p.real_queue_id, p.real_queue_offset, o.admin_offset, o.rank
FROM reported o JOIN placements p
  ON o.source = p.source AND o.queue_id = p.queue_id AND o.queue_offset = p.queue_offset
  AND p.reason IS NOT DISTINCT FROM o.reason
ORDER BY rank
"""


def order_messages(due_delayed: pa.Table, committed: pa.Table, resumed: pa.Table) -> pa.Table:
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


def deliver_messages(
    ordered: pa.Table,
    discarded: pa.Table,
    state: State,
    requested_topics: dict[str, int],
    parameters: Parameters,
) -> Delivered:
    """Returns where messages go: those to deliver now and the copies of first discards.

    Input: the frame of `order_messages`; discarded halves with their `cause`; `requested_topics`:
    queue counts of the topics that an operator makes in this epoch.
    """
    if not (ordered.num_rows or discarded.num_rows or requested_topics):
        return Delivered()

    queue_counts = dict(
        zip(state.topics["topic"].to_pylist(), state.topics["queue_count"].to_pylist(), strict=True)
    )

    existing = {*queue_counts, *requested_topics}
    auto_created = auto_create(ordered, state.topics, existing, parameters)
    new_topics = requested_topics | dict.fromkeys(
        auto_created.group_by_topic, parameters.default_queue_count
    )

    routed = route_messages(ordered, queue_counts | new_topics, auto_created.refused, parameters)
    is_undeliverable = to_mask(routed["reason"].is_valid())

    if discarded.num_rows and CHECK_MAX_TOPIC not in queue_counts:
        new_topics[CHECK_MAX_TOPIC] = 1
    if is_undeliverable.any() and UNDELIVERABLE_TOPIC not in queue_counts:
        new_topics[UNDELIVERABLE_TOPIC] = 1

    placements = assign_offsets(routed, discarded, state.next_offsets)

    phase = to_int64(routed["phase"])
    reported = filter_rows(routed, (phase != 2) | is_undeliverable)
    resumed_in_vain = filter_rows(routed.select(["admin_offset"]), (phase == 3) & is_undeliverable)

    return Delivered(
        placements=placements,
        new_topics=_with_table_ids(state.topics, new_topics, auto_created.group_by_topic),
        deliveries=_deliveries(reported, placements),
        still_undeliverable=resumed_in_vain["admin_offset"].to_pylist(),
    )


def _deliveries(reported: pa.Table, placements: pa.Table) -> pa.Table:
    """Returns the rows of `deliveries` for these messages. Output: DELIVERIES."""
    if reported.num_rows == 0:
        return DELIVERIES.empty_table()

    deliveries = run(_DELIVERIES, reported=reported, placements=placements)
    return deliveries.drop_columns("rank").cast(DELIVERIES)


def _with_table_ids(
    topics: pa.Table, queue_counts: dict[str, int], group_by_topic: Mapping[str, str]
) -> pa.Table:
    """Returns the topics to make; their ids follow the order of names. Output: TOPICS."""
    first_id = 1 + max(topics["table_id"].to_pylist(), default=0)
    rows = [
        {
            "topic": name,
            "table_id": table_id,
            "queue_count": queue_counts[name],
            "producer_group": group_by_topic.get(name),
        }
        for table_id, name in enumerate(sorted(queue_counts), first_id)
    ]
    return pa.Table.from_pylist(rows, schema=TOPICS)


def route_messages(
    ordered: pa.Table,
    queue_counts: Mapping[str, int],
    refused: Collection[str],
    parameters: Parameters,
) -> pa.Table:
    """Returns each message with its queue, and the `reason` why its topic cannot take it, or null.

    Input: `queue_counts`: of all topics that exist; `refused`: topics that were not made because
    of `group_topics_max`.
    """
    topics = ordered["real_topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    topic = topics.indices.to_numpy()

    default = parameters.default_queue_count
    queue_count = np.array([queue_counts.get(name, default) for name in names], np.int64)[topic]
    exists = np.array([name in queue_counts for name in names], bool)[topic]
    is_refused = np.array([name in refused for name in names], bool)[topic]

    requested = to_int64(ordered["real_queue_id"])
    is_beyond = np.maximum(requested, 0) >= queue_count
    is_beyond &= exists | parameters.auto_create_topics

    reason = case_when(
        [
            (is_beyond, "queue_out_of_range"),
            (is_refused, "group_topics_max"),
            (~exists, "topic_not_allowed"),
        ]
    )

    chosen = to_int64(ordered["queue_offset"]) % queue_count
    target = np.where(requested >= 0, requested, chosen).astype(np.int32)
    return ordered.append_column("reason", reason).append_column(
        "target_queue_id", pa.array(target)
    )


def assign_offsets(routed: pa.Table, discarded: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Returns every message with its queue offset.

    Output: PLACEMENTS, by topic, queue and offset. A resumed message that is still undeliverable
    stays where it is and has no row.
    """
    is_deliverable = to_mask(routed["reason"].is_null())
    is_placed = is_deliverable | (to_int64(routed["phase"]) < 3)

    routed = filter_rows(routed, is_placed)
    deliverable = pa.array(is_deliverable[is_placed])

    messages = _unnumbered(
        routed,
        topic=pc.if_else(deliverable, routed["real_topic"], UNDELIVERABLE_TOPIC),
        queue_id=pc.if_else(deliverable, routed["target_queue_id"], 0),
        source=routed["source"],
        reason=routed["reason"],
    )

    discarded = discarded.take(pa.array(np.argsort(row_keys(discarded))))
    copies = _unnumbered(
        discarded, topic=CHECK_MAX_TOPIC, queue_id=0, source="half", reason=discarded["cause"]
    )

    return _number_in_queues(pa.concat_tables([messages, copies]), next_offsets)


def _unnumbered(rows: pa.Table, topic: Any, queue_id: Any, source: Any, reason: Any) -> pa.Table:
    """Returns messages with their real queue, still without queue offsets."""
    return build_frame(
        _UNNUMBERED_ROWS,
        rows,
        topic=topic,
        real_queue_id=queue_id,
        source=source,
        asked_queue_id=rows["real_queue_id"],
        reason=reason,
    )


def _number_in_queues(unnumbered: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Returns the messages with their queue offsets, counted on in each real queue in row order."""
    topics = unnumbered["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    name_rank = np.argsort(np.argsort(names)) if names else np.array([], np.int64)

    topic_rank = name_rank[topics.indices.to_numpy()]
    queue = (topic_rank << 32) | to_int64(unnumbered["real_queue_id"])
    order = np.argsort(queue, kind="stable")
    unnumbered = unnumbered.take(pa.array(order))
    queue = queue[order]

    starts = np.flatnonzero(np.diff(queue, prepend=-1))
    counts = np.diff(starts, append=len(queue))

    counters = next_offsets.filter(pc.is_in(next_offsets["topic"], pa.array(names, pa.string())))
    next_by_queue = {
        (row["topic"], row["queue_id"]): row["next_offset"] for row in counters.to_pylist()
    }
    first_rows = unnumbered.select(["topic", "real_queue_id"]).take(pa.array(starts)).to_pylist()
    first_offsets = [
        next_by_queue.get((row["topic"], row["real_queue_id"]), 0) for row in first_rows
    ]
    offsets = np.arange(len(queue)) + np.repeat(np.array(first_offsets, np.int64) - starts, counts)

    column = PLACEMENTS.get_field_index("real_queue_offset")
    numbered = unnumbered.add_column(column, PLACEMENTS.field(column), pa.array(offsets))
    return numbered.cast(PLACEMENTS)


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
