"""The position of each consumer group in each queue, and until when its owner holds it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from checker.frames_ops.sql import run
from pipelines.explain.rows import Row, to_dicts
from storage.errors import MissingTableError
from storage.lake.lake import Lake
from storage.rows import milliseconds
from txlake._consumer_offsets import Commit, OwnerSessions
from txlake.protocol import SESSION_TIMEOUT_MS

TABLE: Final = "consumer_offsets"

# Of a queue's rows the one of the largest generation holds, of these the latest.
_NEWEST = """
SELECT * FROM commits
QUALIFY row_number() OVER (PARTITION BY consumer_group, topic, queue_id
  ORDER BY generation DESC, committed_at DESC) = 1
ORDER BY consumer_group, topic, queue_id
"""


def read_positions(lake: Lake) -> list[Row]:
    """Returns the newest row of each queue of each consumer group, in their order. Units: ms.

    Output: the columns of `consumer_offsets`, and `held_until`: when the session of the owner is
    over if it does not commit again; null if the owner gave the queue back.
    Source: the SDK's own rule, by which a challenger waits
    (`txlake._consumer_offsets.OwnerSessions`).
    """
    try:
        commits = lake.read(TABLE)
    except MissingTableError:  # no consumer has made it yet
        return []

    newest = run(_NEWEST, commits=commits)
    owned_until = _held_until(newest.to_pylist())
    return [
        {**row, "held_until": until}
        for row, until in zip(to_dicts(newest), owned_until, strict=True)
    ]


def _held_until(rows: list[dict[str, Any]]) -> list[int | None]:
    names = [field.name for field in fields(Commit)]
    values: list[dict[str, Any]] = [{name: row.get(name) for name in names} for row in rows]
    commits = [Commit(**row_values) for row_values in values]
    sessions = OwnerSessions(commits, SESSION_TIMEOUT_MS)

    expirations = [sessions.held_until(commit) for commit in commits]
    return [None if until is None else milliseconds(until) for until in expirations]
