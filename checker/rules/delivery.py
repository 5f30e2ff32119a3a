"""Where messages are delivered: the real topic, its queue and its queue offset.

Messages of an epoch are delivered in three phases:

1. delayed messages that are due, by (deliver_at, source, queue, offset);
2. committed halves, by (op queue, op offset, position, TRAN_SEQ);
3. messages that an operator resumes, by their offset in TRANS_UNDELIVERABLE_TOPIC.

Copies of discarded halves go into a topic of their own, by (queue, offset). Queue offsets are
contiguous from 0.

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

# The phases of an epoch.
_DUE = 1
_COMMITTED = 2
_RESUMED = 3

_UNNUMBERED_ROWS = pa.schema([field for field in PLACEMENTS if field.name != "real_queue_offset"])
_ORDERED_ROWS = pa.schema(
    [
        ("phase", pa.int32()),
        *(field for field in DELAYED if field.name != "deliver_at"),
        ("admin_offset", pa.int64()),
    ]
)

# A message has one placement with its reason: a resumed one that is still undeliverable has none.
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
    is_schedule = ~to_mask(pc.equal(due_delayed["source"], "half"))
    by_time = [to_int64(due_delayed["deliver_at"]), is_schedule, row_keys(due_delayed)]

    by_operation = [
        row_keys(committed, "op_queue_offset"),
        to_int64(committed["position"]),
        to_int64(committed["tran_seq"], null=0),
    ]

    by_offset = [to_int64(resumed["undeliverable_offset"])]

    ordered = pa.concat_tables(
        [
            _sorted(due_delayed, by_time, phase=_DUE, admin_offset=None),
            _sorted(committed, by_operation, phase=_COMMITTED, source="half", admin_offset=None),
            _sorted(resumed, by_offset, phase=_RESUMED),
        ]
    )
    return ordered.append_column("rank", pa.array(np.arange(1, ordered.num_rows + 1)))


def _sorted(rows: pa.Table, keys: Sequence[Numbers], **values: Any) -> pa.Table:
    """Returns the messages of a phase, sorted by these keys, the first of them first.

    Input: `values`: columns that have one value in the whole phase.
    """
    order = np.lexsort(keys[::-1])
    is_sorted = (np.diff(order) == 1).all()
    if not is_sorted:
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
    still_undeliverable: Collection[int] = ()


def deliver_messages(
    ordered: pa.Table,
    discarded: pa.Table,
    state: State,
    requested_topics: dict[str, int],
    parameters: Parameters,
) -> Delivered:
    """Returns where messages go: those to deliver now, and copies of discarded halves.

    Input: the frame of `order_messages`; halves discarded for the first time, with their `cause`;
    `requested_topics`: queue counts of the topics that an operator makes in this epoch.
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

    # `outcomes` says where a message went that its commit delivered: it has no row here.
    phase = to_int64(routed["phase"])
    reported = filter_rows(routed, (phase != _COMMITTED) | is_undeliverable)

    is_resumed_in_vain = (phase == _RESUMED) & is_undeliverable
    resumed_in_vain = filter_rows(routed.select(["admin_offset"]), is_resumed_in_vain)

    return Delivered(
        placements=placements,
        new_topics=_with_table_ids(state.topics, new_topics, auto_created.group_by_topic),
        deliveries=_deliveries(reported, placements),
        still_undeliverable=frozenset(resumed_in_vain["admin_offset"].to_pylist()),
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
    of_topic = topics.indices.to_numpy()

    # Of each topic, then of each message.
    default = parameters.default_queue_count
    queue_count = np.array([queue_counts.get(name, default) for name in names], np.int64)[of_topic]
    exists = np.array([name in queue_counts for name in names], bool)[of_topic]
    is_refused = np.array([name in refused for name in names], bool)[of_topic]

    # A topic that does not exist and may not be made has no queue count to be beyond.
    has_queue_count = exists | parameters.auto_create_topics
    requested = to_int64(ordered["real_queue_id"], null=-1)
    is_beyond = has_queue_count & (np.maximum(requested, 0) >= queue_count)

    reason = case_when(
        [
            (is_beyond, "queue_out_of_range"),
            (is_refused, "group_topics_max"),
            (~exists, "topic_not_allowed"),
        ]
    )

    # Without a requested queue messages take turns, by the offsets of their records.
    chosen = to_int64(ordered["queue_offset"]) % queue_count
    target = np.where(requested >= 0, requested, chosen).astype(np.int32)

    routed = ordered.append_column("reason", reason)
    return routed.append_column("target_queue_id", pa.array(target))


def assign_offsets(routed: pa.Table, discarded: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Returns every message with its queue offset.

    Output: PLACEMENTS, by topic, queue and offset. A resumed message that is still undeliverable
    stays where it is and has no row.
    """
    is_deliverable = to_mask(routed["reason"].is_null())
    is_placed = is_deliverable | (to_int64(routed["phase"]) != _RESUMED)

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
    """Returns the messages with their queue offsets, sorted by queue; each queue in row order.

    Offsets go on from the next offset of each queue.
    """
    # A queue as one number, which sorts by the topic's name and then by queue_id.
    topics = unnumbered["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    rank_of_name = np.argsort(np.argsort(names)) if names else np.array([], np.int64)
    topic_rank = rank_of_name[topics.indices.to_numpy()]
    queue = (topic_rank << 32) | to_int64(unnumbered["real_queue_id"])

    order = np.argsort(queue, kind="stable")
    unnumbered = unnumbered.take(pa.array(order))
    queue = queue[order]

    # The rows at which a queue begins, and how many rows it has.
    starts = np.flatnonzero(np.diff(queue, prepend=-1))
    counts = np.diff(starts, append=len(queue))

    of_these = pc.is_in(next_offsets["topic"], pa.array(names, pa.string()))
    next_by_queue = {
        (row["topic"], row["queue_id"]): row["next_offset"]
        for row in next_offsets.filter(of_these).to_pylist()
    }
    queues = unnumbered.select(["topic", "real_queue_id"]).take(pa.array(starts)).to_pylist()
    first_offsets = np.array(
        [next_by_queue.get((row["topic"], row["real_queue_id"]), 0) for row in queues], np.int64
    )

    # The first row of a queue gets its next offset, the rows behind it the following ones.
    rows = np.arange(len(queue))
    offsets = rows + np.repeat(first_offsets - starts, counts)

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
