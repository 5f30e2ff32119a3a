"""Operations without effect, the newest last: the operation, the reason, and the half."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.errors import OperatorError
from pipelines.explain import rule_texts
from pipelines.explain.rows import Row, latest_committed, to_dicts
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant
from storage.wire.record_kinds import HALF, OP
from txlake.protocol import RecordTarget

COLUMNS: Final = (
    "decided_at",
    "reason",
    "half",
    "op",
    "decision",
    "producer_group",
    "actor",
    "error",
)
_CONFLICT = ["queue_id", "op_queue_offset", "half_queue_offset", "reason", "decided_at", "epoch"]
_OP = ["queue_id", "queue_offset", "decision", "producer_group", "actor", "error"]

_CONFLICTS = """
SELECT c.*, o.decision, o.producer_group, o.actor, o.error FROM conflicts c
LEFT JOIN op o ON c.queue_id = o.queue_id AND c.op_queue_offset = o.queue_offset
WHERE ($group IS NULL OR o.producer_group = $group)
  AND ($reason IS NULL OR c.reason = $reason)
ORDER BY c.decided_at, c.queue_id, c.op_queue_offset, c.half_queue_offset
"""

_COUNTS = """
SELECT producer_group, reason, count(*) AS operations FROM chosen
GROUP BY producer_group, reason
ORDER BY operations DESC, producer_group, reason
"""


def require_reason(reason: str | None) -> None:
    """Raises OperatorError for a reason that no conflict has; None: no reason was named."""
    if reason is not None and reason not in rule_texts.CONFLICTS:
        raise OperatorError(
            f"no operation has the reason {reason!r}: one of {', '.join(rule_texts.CONFLICTS)} is "
            "allowed"
        )


@dataclass(frozen=True)
class Conflicts:
    """Conflicts, the newest last, up to a limit. `rows`: COLUMNS; ms.

    `counts`: how many there are in all, by producer group (None: cannot be read) and reason.
    """

    rows: list[Row]
    counts: Counter[tuple[str | None, str]]


def read_conflicts(
    lake: Lake,
    since_at: int | None,
    group: str | None = None,
    reason: str | None = None,
    limit: int | None = None,
) -> Conflicts:
    """Returns the newest conflicts that were decided since an instant.

    Input: the producer group and the reason to choose, if any; None as the limit: all of them.
    """
    epoch, _ = latest_committed(lake)
    bounds: Bounds = {"epoch": (None, epoch)}
    if since_at is not None:
        bounds = {**bounds, "decided_at": (instant(since_at), None)}

    conflicts = read_rows(lake, "conflicts", _CONFLICT, bounds)
    op_bounds: Bounds = {"queue_offset": pc.unique(conflicts["op_queue_offset"]).to_pylist()}
    op = read_rows(lake, OP, _OP, op_bounds)
    values = {"group": group, "reason": reason}
    chosen = run(_CONFLICTS, values, conflicts=conflicts, op=op)

    counts = to_dicts(run(_COUNTS, chosen=chosen))
    first = 0 if limit is None else max(0, chosen.num_rows - limit)
    return Conflicts(
        [_conflict(row) for row in to_dicts(chosen.slice(first))],
        Counter({(row["producer_group"], row["reason"]): row["operations"] for row in counts}),
    )


def _conflict(row: Row) -> Row:
    half = row["half_queue_offset"]
    places = {
        "half": None if half is None else str(RecordTarget(HALF, row["queue_id"], half)),
        "op": f"{row['queue_id']}-{row['op_queue_offset']}",
    }
    return {name: places[name] if name in places else row[name] for name in COLUMNS}
