"""How far each consumer group is, queue by queue, from `consumer_offsets`."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pipelines.errors import OperatorError
from pipelines.explain.consumer_positions import read_positions
from pipelines.explain.rows import Row, to_dicts
from pipelines.health.consumer_retries import count_refused
from pipelines.health.topics import catalog, queue_ends, require_topic
from pipelines.output import now_ms
from storage.lake.lake import Lake
from storage.lake.pruned import read_rows
from storage.lake.table import queue_floor

LAG_COLUMNS: Final = (
    "consumer_group",
    "topic",
    "queue_id",
    "lag",
    "queue_offset",
    "end_offset",
    "committed_at",
    "owner",
)
COLUMNS: Final = (
    "consumer_group",
    "topics",
    "queues",
    "lag",
    "committed_at",
    "owners",
    "retrying",
    "dead",
)
UNREAD_COLUMNS: Final = ("consumer_group", "is_gone", "messages", "oldest_at", "gone_at")

_FIRST_UNREAD: Final = ("queue_id", "queue_offset", "stored_at", "epoch")


def read_lags(lake: Lake, group: str | None = None, topic: str | None = None) -> list[Row]:
    """Returns each queue of each consumer group. Output: LAG_COLUMNS; ms.

    Input: the consumer group and the topic to choose, if any.
    `lag`: messages that the topic has and the group has not committed; `queue_offset`: null before
    its first commit; `owner`: null if it gave the queue back, or its session is over.
    """
    now = now_ms()
    return [
        {name: row[name] for name in LAG_COLUMNS}
        | {"owner": row["owner"] if _is_held(row, now) else None}
        for row in _queues(lake)
        if group in (None, row["consumer_group"]) and topic in (None, row["topic"])
    ]


def _queues(lake: Lake, is_ending: Callable[[], bool] = lambda: False) -> list[Row]:
    """Returns each queue of each consumer group.

    Input: `is_ending`: called before each look at a queue's begin, which is 0 from then on.

    Output: rows of `read_positions` with `table`, `end_offset`, `next_offset`, the first that is
    not read, and `lag`.
    """
    positions = read_positions(lake)
    if not positions:
        return []

    ends = queue_ends(lake)
    tables = {row["topic"]: f"topics/{row['table_id']}" for row in catalog(lake)}

    @functools.cache  # many groups read a queue, and each look reads the table's log
    def begin_of(table: str, queue_id: int) -> int:
        return 0 if is_ending() else queue_floor(lake.handle(table), queue_id)

    rows = []
    for row in positions:
        queue_id = row["queue_id"]
        table = tables.get(row["topic"])
        end = ends.get((row["topic"], queue_id), 0)
        first = row["queue_offset"] or 0
        if table is not None and first < end:  # else nothing is unread, wherever it begins
            first = max(first, begin_of(table, queue_id))

        rows.append(
            {
                **row,
                "table": table,
                "end_offset": end,
                "next_offset": first,
                "lag": max(0, end - first),
            }
        )
    return rows


def _is_held(row: Row, now: int) -> bool:
    return row["held_until"] is not None and now <= row["held_until"]


def read_unread(lake: Lake, now: int, is_ending: Callable[[], bool] = lambda: False) -> list[Row]:
    """Returns the consumer groups whose owners have unread messages. Output: UNREAD_COLUMNS; ms.

    A group has one row for the queues of living owners, and one, `is_gone`, for the queues whose
    owner let its session end without giving them back, first at `gone_at`. A queue that was given
    back has no owner and appears in no row; nor does one that a living owner has not committed yet:
    with `auto_offset_reset` "latest" it wants none of the messages before it. `oldest_at`: when the
    oldest of the messages was delivered; null if it has been deleted meanwhile.

    Input: `is_ending`: called before each table; messages not read by then have no `oldest_at`.
    """
    waiting = [
        row
        for row in _queues(lake, is_ending)
        if row["lag"] and row["held_until"] is not None and not _is_uncommitted(row, now)
    ]
    delivered_at = _delivered_at(lake, waiting, is_ending)

    rows_by_owner: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in waiting:
        rows_by_owner[row["consumer_group"], not _is_held(row, now)].append(row)

    groups = []
    for (group, is_gone), rows in sorted(rows_by_owner.items()):
        known_at = [delivered_at[_place(row)] for row in rows if _place(row) in delivered_at]
        groups.append(
            {
                "consumer_group": group,
                "is_gone": is_gone,
                "messages": sum(row["lag"] for row in rows),
                "oldest_at": min(known_at, default=None),
                "gone_at": min(row["held_until"] for row in rows) if is_gone else None,
            }
        )
    return groups


def _is_uncommitted(row: Row, now: int) -> bool:
    return row["queue_offset"] is None and _is_held(row, now)


def _place(row: Row) -> tuple[str, int, int]:
    return row["table"], row["queue_id"], row["next_offset"]


def _delivered_at(
    lake: Lake, waiting: Sequence[Row], is_ending: Callable[[], bool]
) -> Mapping[tuple[str, int, int], int]:
    """Returns when the first unread message of each queue was delivered: one read a topic."""
    by_table: dict[str, list[Row]] = defaultdict(list)
    for row in waiting:
        by_table[row["table"]].append(row)

    messages: dict[tuple[str, int, int], Row] = {}
    for table, rows in by_table.items():
        if is_ending():
            break

        bounds = {
            "queue_id": sorted({row["queue_id"] for row in rows}),
            "queue_offset": sorted({row["next_offset"] for row in rows}),
        }
        for message in to_dicts(read_rows(lake, table, _FIRST_UNREAD, bounds)):
            messages[table, message["queue_id"], message["queue_offset"]] = message

    epochs = sorted({message["epoch"] for message in messages.values()})
    rows = read_rows(lake, "epochs", ["epoch", "epoch_at"], {"epoch": epochs})
    epoch_at = {row["epoch"]: row["epoch_at"] for row in to_dicts(rows)}

    # Rows of old epochs are deleted: then `stored_at`, which is earlier, stands for `epoch_at`.
    return {
        key: int(epoch_at.get(message["epoch"]) or message["stored_at"])
        for key, message in messages.items()
    }


def find_lags(lake: Lake, group: str | None, topic: str | None) -> list[Row]:
    """Returns the rows of `read_lags`, the largest lag first, if the names exist.

    Errors: OperatorError for a group that has read nothing in the scope, and for an unknown topic:
    without rows they would look as if nobody were behind.
    """
    rows = read_lags(lake, group, topic)

    if not rows and group is not None:
        scope = f"the lake {lake.path}"
        if topic is not None:
            scope = f"topic {topic!r} in {scope}"
        raise OperatorError(
            f"consumer group {group!r} has read nothing of {scope}; `txlake consumer list` names "
            "the groups and what they read"
        )

    if not rows and topic is not None:
        require_topic(lake, topic)

    return sorted(rows, key=lambda row: -row["lag"])


def read_consumers(lake: Lake) -> list[Row]:
    """Returns each consumer group once. Output: COLUMNS.

    `committed_at`: its latest commit; null if `consumer_offsets` does not have the group any more.
    `retrying`, `dead`: messages that its listener has refused, and that come again or do not.
    """
    refused = {row["consumer_group"]: row for row in count_refused(lake)}
    groups: dict[str, list[Row]] = defaultdict(list, {group: [] for group in refused})
    for row in read_lags(lake):
        groups[row["consumer_group"]].append(row)

    return [
        {
            "consumer_group": group,
            "topics": sorted({row["topic"] for row in rows}),
            "queues": len(rows),
            "lag": sum(row["lag"] for row in rows),
            "committed_at": max((row["committed_at"] for row in rows), default=None),
            "owners": sorted({row["owner"] for row in rows if row["owner"]}),
            "retrying": refused[group]["retrying"] if group in refused else 0,
            "dead": refused[group]["dead"] if group in refused else 0,
        }
        for group, rows in sorted(groups.items())
    ]
