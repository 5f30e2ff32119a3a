"""What is delivered where: the real topic, its queue and its queue offset.

Order within an epoch: due delayed messages by (deliver_at, source, queue, offset), then committed
halves by (op queue, op offset, position, TRAN_SEQ), then resumed undeliverable messages by their
offset there; discards by half coordinate. Queue offsets are contiguous from 0.

Source: CommitLog's queue offsets (one counter a queue); PROTOCOL.md "Delivery".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import Numbers, choose, frame, longs, places, truth
from checker.frames import DELAYED, NEXT_OFFSETS, PLACEMENTS, TOPICS, Parameters
from checker.sql import run
from txlake.protocol import CHECK_MAX_TOPIC, SYSTEM_REAL_TOPICS, UNDELIVERABLE_TOPIC

_WANTED_ROWS = pa.schema([field for field in PLACEMENTS if field.name != "real_queue_offset"])
_ORDERED_ROWS = pa.schema(
    [("phase", pa.int32()),
     *(DELAYED.field(name) for name in ("source", "queue_id", "queue_offset", "real_topic",
                                        "real_queue_id")),
     ("admin_offset", pa.int64())]
)  # fmt: skip


def in_order(due_delayed: pa.Table, committed: pa.Table, resumed: pa.Table) -> pa.Table:
    """Put all that is to be delivered into the one order of the epoch.

    Output: phase, source, queue_id, queue_offset, real_topic, real_queue_id, admin_offset, rank.
    """
    is_schedule = ~truth(pc.equal(due_delayed["source"], "half"))
    parts = [
        _phase(1, due_delayed, longs(due_delayed["deliver_at"]), is_schedule, places(due_delayed)),
        _phase(2, committed, places(committed, "op_queue_offset"), longs(committed["position"]),
               longs(committed["tran_seq"], null=0)),
        _phase(3, resumed, longs(resumed["undeliverable_offset"])),
    ]  # fmt: skip
    ordered = pa.concat_tables(parts)
    return ordered.append_column("rank", pa.array(np.arange(1, ordered.num_rows + 1)))


def _phase(phase: int, rows: pa.Table, *keys: Numbers) -> pa.Table:
    """Return the messages of a phase, sorted by these keys. A committed half is from `half`."""
    order = np.lexsort(keys[::-1])
    if (np.diff(order) != 1).any():
        rows = rows.take(pa.array(order))
    values: dict[str, Any] = {"phase": phase}
    if phase == 2:
        values["source"] = "half"
    if phase != 3:
        values["admin_offset"] = None
    return frame(_ORDERED_ROWS, rows, **values)


def new_topics(
    ordered: pa.Table,
    discarded: pa.Table,
    topics: pa.Table,
    asked_for: dict[str, int],
    parameters: Parameters,
) -> pa.Table:
    """Return the topics to be made now, ids in name order. Output: TOPICS.

    `asked_for`: queue counts of the topics that an operator makes in this epoch. `topics_max`
    counts the topics that users named; TRANS_CHECK_MAX_TIME_TOPIC and TRANS_UNDELIVERABLE_TOPIC
    are made whenever they are needed.
    """
    counts = dict(asked_for)
    known = {*topics["topic"].to_pylist(), *counts}
    if parameters.auto_create_topics:
        room = parameters.topics_max - len(known - set(SYSTEM_REAL_TOPICS))
        fits = longs(ordered["real_queue_id"]) < parameters.default_queue_count
        wanted = pc.unique(ordered["real_topic"].filter(pa.array(fits))).to_pylist()
        names = sorted(set(wanted) - known)[: max(0, room)]
        counts |= dict.fromkeys(names, parameters.default_queue_count)
    routed = route(ordered, pa.concat_tables([topics, _numbered(topics, counts)]), parameters)
    known = set(topics["topic"].to_pylist())
    if discarded.num_rows and CHECK_MAX_TOPIC not in known:
        counts[CHECK_MAX_TOPIC] = 1
    if routed["reason"].null_count < routed.num_rows and UNDELIVERABLE_TOPIC not in known:
        counts[UNDELIVERABLE_TOPIC] = 1
    return _numbered(topics, counts)


def _numbered(topics: pa.Table, queue_counts: dict[str, int]) -> pa.Table:
    first = 1 + max(topics["table_id"].to_pylist(), default=0)
    return pa.Table.from_pylist(
        [
            {"topic": name, "table_id": first + place, "queue_count": queue_counts[name]}
            for place, name in enumerate(sorted(queue_counts))
        ],
        schema=TOPICS,
    )


def route(ordered: pa.Table, topics: pa.Table, parameters: Parameters) -> pa.Table:
    """Say of each message whether its topic can take it (`reason` is null) and in which queue."""
    names = ordered["real_topic"].combine_chunks().dictionary_encode()
    known = dict(zip(topics["topic"].to_pylist(), topics["queue_count"].to_pylist(), strict=True))
    default = parameters.default_queue_count
    queues = [known.get(name, default) for name in names.dictionary.to_pylist()]
    exists = [name in known for name in names.dictionary.to_pylist()]
    topic = names.indices.to_numpy()
    queue_count = np.array(queues, np.int64)[topic]
    is_known = np.array(exists, bool)[topic]
    asked = longs(ordered["real_queue_id"])
    is_beyond = (np.maximum(asked, 0) >= queue_count) & (is_known | parameters.auto_create_topics)
    reason = choose([(is_beyond, "queue_out_of_range"), (~is_known, "topic_not_allowed")])
    target = np.where(asked >= 0, asked, longs(ordered["queue_offset"]) % queue_count)
    return ordered.append_column("reason", reason).append_column(
        "target_queue_id", pa.array(target.astype(np.int32))
    )


def place(routed: pa.Table, discarded: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Return every message with its queue offset. Output: PLACEMENTS, by topic, queue and offset.

    A resumed message that still cannot be delivered stays where it is: no row.
    """
    is_fine = truth(routed["reason"].is_null())
    is_placed = is_fine | (longs(routed["phase"]) < 3)
    if not is_placed.all():
        routed, is_fine = routed.filter(pa.array(is_placed)), is_fine[is_placed]
    fine = pa.array(is_fine)
    discarded = discarded.take(pa.array(np.argsort(places(discarded))))
    wanted = pa.concat_tables(
        [
            _wanted(routed, pc.if_else(fine, routed["real_topic"], UNDELIVERABLE_TOPIC),
                    pc.if_else(fine, routed["target_queue_id"], 0), routed["source"],
                    routed["reason"]),
            _wanted(discarded, CHECK_MAX_TOPIC, 0, "half", discarded["cause"]),
        ]
    )  # fmt: skip
    return _numbered_in_queues(wanted, next_offsets)


def _wanted(rows: pa.Table, topic: Any, queue_id: Any, source: Any, reason: Any) -> pa.Table:
    """Return messages with the queue they go to, without their offsets there."""
    return frame(
        _WANTED_ROWS,
        rows,
        topic=topic,
        real_queue_id=queue_id,
        source=source,
        asked_queue_id=rows["real_queue_id"],
        reason=reason,
    )


def _numbered_in_queues(wanted: pa.Table, next_offsets: pa.Table) -> pa.Table:
    """Number the messages of each real queue on, in the order of the rows."""
    names = wanted["topic"].combine_chunks().dictionary_encode()
    by_name = names.dictionary.to_pylist()
    in_name_order = np.argsort(np.argsort(by_name)) if by_name else np.array([], np.int64)
    topic = names.indices.to_numpy()
    queue = (in_name_order[topic] << 32) | longs(wanted["real_queue_id"])
    order = np.argsort(queue, kind="stable")
    wanted, queue = wanted.take(pa.array(order)), queue[order]
    starts = np.flatnonzero(np.diff(queue, prepend=-1))
    counts = np.diff(starts, append=len(queue))
    reached = {
        (row["topic"], row["queue_id"]): row["next_offset"] for row in next_offsets.to_pylist()
    }
    heads = wanted.select(["topic", "real_queue_id"]).take(pa.array(starts)).to_pylist()
    first = [reached.get((row["topic"], row["real_queue_id"]), 0) for row in heads]
    offsets = np.arange(len(queue)) + np.repeat(np.array(first, np.int64) - starts, counts)
    place = PLACEMENTS.get_field_index("real_queue_offset")
    return wanted.add_column(place, PLACEMENTS.field(place), pa.array(offsets)).cast(PLACEMENTS)


def advance_offsets(next_offsets: pa.Table, placements: pa.Table) -> pa.Table:
    """Return the next offset of each real queue after the placements. Output: NEXT_OFFSETS."""
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
