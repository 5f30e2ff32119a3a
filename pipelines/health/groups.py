"""Producer groups: their pending halves, their newest checks, and whether they answer.

A check is unanswered if ANSWER_MS have passed, no operation of its group or an operator has ended
its half, and the half has no later answer. `txlake groups` and the problem `group_silent` read that
from the lake, the metrics count it epoch by epoch (`pipelines/metrics/groups.py`).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.explain.rows import Row, latest_committed, to_dicts
from storage.lake.aging import first_epoch_of_last_rows
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant

COLUMNS: Final = (
    "producer_group",
    "members",
    "pending",
    "oldest_at",
    "asked_at",
    "answered_at",
    "unanswered",
    "of_checks",
)
NEWEST_CHECKS: Final = 5
# A check that was sent just now cannot be answered yet.
ANSWER_MS: Final = 60_000
# Beyond that a check tells nothing new: attempts are at most an hour apart, or check_interval_ms.
_LOOK_BACK_MS: Final = 86_400_000
# About the number of checks that are read: a group whose checks are older than the newest of them,
# and that has nothing pending, is left out.
CHECKS_MAX: Final = 200_000
_CHECK = ["queue_id", "queue_offset", "arm", "producer_group", "sent_at", "epoch"]
_OUTCOME = ["queue_id", "queue_offset", "arm", "cause", "decided_at"]

# The causes of an end that somebody wanted: no check of that half waits for an answer any more.
WANTED_ENDS: Final = ("operation", "check_answer", "late_end", "operator")

# Young checks grow old epoch by epoch.
_NEWEST = """
WITH aged AS (SELECT *, epoch_ms(sent_at) > $until_at AS is_young FROM checks)
SELECT * FROM aged
QUALIFY row_number() OVER (PARTITION BY producer_group, CASE WHEN is_young THEN epoch END
  ORDER BY epoch DESC, queue_id, queue_offset) <= $newest
"""
_ANSWERS = """
WITH ended AS (
  SELECT queue_id, queue_offset, arm, max(epoch_ms(decided_at)) AS at,
    max(epoch_ms(decided_at)) FILTER (cause <> 'operator') AS own_at
  FROM outcomes WHERE list_contains($wanted, cause) GROUP BY ALL
)
SELECT c.*, s.last_answer_at, e.own_at,
  e.at IS NOT NULL OR coalesce(s.last_answer_at, 0) >= epoch_ms(c.sent_at) AS is_answered
FROM newest c
LEFT JOIN state s ON c.queue_id = s.queue_id AND c.queue_offset = s.queue_offset
LEFT JOIN ended e ON c.queue_id = e.queue_id AND c.queue_offset = e.queue_offset AND c.arm = e.arm
"""
_GROUPS = """
WITH asked AS (
  SELECT producer_group, max(epoch_ms(sent_at)) AS asked_at FROM checks GROUP BY producer_group
),
heard AS (
  SELECT producer_group,
    max(greatest(coalesce(last_answer_at, own_at), coalesce(own_at, last_answer_at)))
      AS answered_at,
    count(*) FILTER (NOT is_young AND NOT is_answered) AS unanswered,
    count(*) FILTER (NOT is_young) AS of_checks
  FROM answers GROUP BY producer_group
),
waits AS (
  SELECT producer_group, count(*) AS pending, min(stored_at) AS oldest_at,
    max(last_answer_at) AS answered_at
  FROM state WHERE discard_cause IS NULL GROUP BY producer_group
)
SELECT coalesce(w.producer_group, a.producer_group) AS producer_group,
  coalesce(w.pending, 0) AS pending, w.oldest_at, a.asked_at,
  greatest(coalesce(w.answered_at, h.answered_at), coalesce(h.answered_at, w.answered_at))
    AS answered_at,
  coalesce(h.unanswered, 0) AS unanswered, coalesce(h.of_checks, 0) AS of_checks
FROM waits w FULL JOIN asked a ON w.producer_group = a.producer_group
LEFT JOIN heard h ON a.producer_group = h.producer_group
ORDER BY pending DESC, 1
"""


def read_groups(lake: Lake, state: pa.Table, now_ms: int) -> list[Row]:
    """Returns the groups with pending halves or recent checks. Output: COLUMNS; ms.

    Input: `state` of `transactions.state_of`. `members` stays null: Kafka knows it, not the lake
    (`health.kafka`).
    `unanswered`: of the newest NEWEST_CHECKS checks that were sent at least ANSWER_MS ago.
    At most about CHECKS_MAX checks of the last day are read, the newest.
    `answered_at`: the newest answer to these checks, or of a pending half.
    """
    epoch, _ = latest_committed(lake)
    checks, answers = read_answers(lake, epoch, state, now_ms)
    rows = to_dicts(run(_GROUPS, checks=checks, answers=answers, state=state))
    return [{name: row.get(name) for name in COLUMNS} for row in rows]


def read_answers(lake: Lake, epoch: int, state: pa.Table, now_ms: int) -> tuple[pa.Table, pa.Table]:
    """Returns the checks of the last day, and the newest of each group with their answers.

    Input: the last epoch; `state`: HALVES after that epoch.
    Output: columns of `checks`; the same and is_young, is_answered, last_answer_at, own_at (when
    the group ended the half itself): NEWEST_CHECKS that are ANSWER_MS old, and as many younger ones
    of each epoch.
    """
    first = first_epoch_of_last_rows(lake, "checks", CHECKS_MAX)
    lately: Bounds = {
        "sent_at": (instant(now_ms - _LOOK_BACK_MS), None),
        "epoch": (first, epoch),
    }
    checks = read_rows(lake, "checks", _CHECK, lately)

    newest = run(_NEWEST, {"newest": NEWEST_CHECKS, "until_at": now_ms - ANSWER_MS}, checks=checks)
    bounds: Bounds = {
        "epoch": (pc.min(newest["epoch"]).as_py() or 0, epoch),
        "queue_offset": sorted(set(newest["queue_offset"].to_pylist())),
    }

    outcomes = read_rows(lake, "outcomes", _OUTCOME, bounds)
    values = {"wanted": WANTED_ENDS}
    answers = run(_ANSWERS, values, newest=newest, state=state, outcomes=outcomes)
    return checks, answers
