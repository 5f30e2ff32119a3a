"""How far each consumer group is, queue by queue, as `consumer_offsets` says."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any, Final

from checker.frames_ops.sql import run
from pipelines.errors import OperatorError
from pipelines.explain.rows import Row, plain
from pipelines.health.topics import catalog, queue_ends, require_topic
from pipelines.output import now_ms
from storage.errors import MissingTableError
from storage.lake.lake import Lake
from storage.lake.table import queue_floor
from storage.rows import instant
from txlake._consumer_offsets import Commit, held_until

TABLE: Final = "consumer_offsets"
LAG_COLUMNS: Final = (
    "consumer_group", "topic", "queue_id", "lag", "queue_offset", "end_offset", "committed_at",
    "owner",
)  # fmt: skip
COLUMNS: Final = ("consumer_group", "topics", "queues", "lag", "committed_at", "owners")

# Of an owner whose rows do not say it, of an SDK before lake format 5.
_SESSION_MS: Final = 30_000

# Of a queue's rows the one of the largest generation holds, of these the latest.
_NEWEST = """
SELECT * FROM commits
QUALIFY row_number() OVER (PARTITION BY consumer_group, topic, queue_id
  ORDER BY generation DESC, committed_at DESC) = 1
ORDER BY consumer_group, topic, queue_id
"""


def read_lags(lake: Lake, group: str | None = None, topic: str | None = None) -> list[Row]:
    """Returns each queue of each consumer group. Output: LAG_COLUMNS; ms.

    Input: the consumer group and the topic to choose, if any.
    `lag`: messages that are there and not committed; `queue_offset` null: nothing read yet; `owner`
    null: it gave the queue back, or its session is over.
    """
    try:
        commits = lake.read(TABLE)
    except MissingTableError:  # no consumer has made it yet
        return []
    ends = queue_ends(lake)
    tables = {row["topic"]: f"topics/{row['table_id']}" for row in catalog(lake)}
    newest = run(_NEWEST, commits=commits)
    living = _living_owners(newest.to_pylist())

    rows = []
    for row in plain(newest):
        table, queue_id = tables.get(row["topic"]), row["queue_id"]
        begin = 0 if table is None else queue_floor(lake.handle(table), queue_id)
        end = ends.get((row["topic"], queue_id), 0)
        row |= {"end_offset": end, "lag": max(0, end - max(begin, row["queue_offset"] or 0))}
        if (row["consumer_group"], row["owner"]) not in living:
            row["owner"] = None
        rows.append({name: row[name] for name in LAG_COLUMNS})
    return [
        row
        for row in rows
        if group in (None, row["consumer_group"]) and topic in (None, row["topic"])
    ]


def _living_owners(rows: list[Row]) -> set[tuple[str, str]]:
    """Returns the groups and owners whose sessions are not over. Input: the newest rows.

    Source: the SDK's own rule, by which a challenger waits (`held_until`).
    """
    values: list[dict[str, Any]] = [
        {field.name: row.get(field.name) for field in fields(Commit)} for row in rows
    ]
    commits = [Commit(**one) for one in values]
    newest = {commit.key: commit for commit in commits}
    one_of_each = {(commit.consumer_group, commit.owner): commit for commit in commits}
    now = instant(now_ms())

    return {
        owner
        for owner, commit in one_of_each.items()
        if (until := held_until(newest, commit, _SESSION_MS)) is not None and now <= until
    }


def chosen_lags(lake: Lake, group: str | None, topic: str | None) -> list[Row]:
    """Returns what `read_lags` does, the most behind first, of names that are there.

    Errors: OperatorError for a group that has read nothing of it, and for a topic that is not
    there: no row would look as if nobody were behind.
    """
    rows = read_lags(lake, group, topic)
    if not rows and group is not None:
        what = f"the lake {lake.path}"
        if topic is not None:
            what = f"topic {topic!r} in {what}"
        raise OperatorError(
            f"consumer group {group!r} has read nothing of {what}; `txlake consumer list` names "
            "the groups and what they read"
        )
    if not rows and topic is not None:
        require_topic(lake, topic)
    return sorted(rows, key=lambda row: -row["lag"])


def read_consumers(lake: Lake) -> list[Row]:
    """Returns each consumer group once. Output: COLUMNS; `committed_at` is its latest commit."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in read_lags(lake):
        groups[row["consumer_group"]].append(row)
    return [
        {
            "consumer_group": group,
            "topics": sorted({row["topic"] for row in rows}),
            "queues": len(rows),
            "lag": sum(row["lag"] for row in rows),
            "committed_at": max(row["committed_at"] for row in rows),
            "owners": sorted({row["owner"] for row in rows if row["owner"]}),
        }
        for group, rows in sorted(groups.items())
    ]
