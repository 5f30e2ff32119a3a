"""The history of a lake, as its epochs record it: rates, lag, pending halves, times.

Epochs are put into buckets of equal time, so that a curve has few points for any span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.explain.rows import Row, latest_committed
from pipelines.health.dead_letters import read_rearmed
from storage.lake.epochs import COMMITTED, PLANNED
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant
from storage.wire.record_kinds import HALF

BUCKETS: Final = 120
# A day of epochs every 20 s; of a busier lake the newest EPOCHS_MAX are shown.
EPOCHS_MAX: Final = 4_000
_EPOCH = ["epoch", "state", "epoch_at", "owner", "counts", "step_ms", "work"]
_ENDED = ["epoch", "queue_id", "queue_offset"]

# Halves that left `pending` but were not pending before: a late end finds a discarded half, or one
# of its set that lands with it.
_EPOCHS = """
WITH recorded AS (
  SELECT epoch, epoch_ms(epoch_at) AS decided_at, owner,
    coalesce(counts['landed_half'], 0) AS landed,
    coalesce(counts['unreadable_half'], 0) AS unreadable,
    coalesce(counts['committed'], 0) AS committed,
    coalesce(counts['rolled_back'], 0) AS rolled_back,
    coalesce(counts['discarded'], 0) AS given_up,
    list_sum(map_values(step_ms)) AS step_ms, work['lag_ms'] AS lag_ms
  FROM rows WHERE state = $committed AND epoch <= $epoch
)
SELECT s.*, coalesce(b.waiting, 0) AS waiting,
  s.landed - s.unreadable - s.committed - s.rolled_back - s.given_up
    + coalesce(l.ends, 0) + coalesce(a.halves, 0) AS more_pending
FROM recorded s
LEFT JOIN behind b ON s.epoch = b.epoch
LEFT JOIN (
  SELECT epoch, count(*) AS ends
  FROM late ANTI JOIN landed USING (epoch, queue_id, queue_offset)
  GROUP BY epoch
) l ON s.epoch = l.epoch
LEFT JOIN (SELECT epoch, count(*) AS halves FROM rearmed GROUP BY epoch) a ON s.epoch = a.epoch
"""
# Pending after an epoch: pending now, less what later epochs have added.
_BUCKETS = """
WITH counted AS (
  SELECT *, $pending - coalesce(sum(more_pending) OVER
    (ORDER BY epoch ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), 0) AS pending
  FROM epochs
)
SELECT CAST(least($buckets - 1, (decided_at - $from_at) // $bucket_ms) AS INT) AS bucket,
  count(*) AS epochs, max(waiting) AS waiting, max(lag_ms) AS lag_ms,
  CAST(arg_max(pending, epoch) AS BIGINT) AS pending,
  CAST(sum(landed) AS BIGINT) AS landed,
  CAST(sum(committed + rolled_back) AS BIGINT) AS ended,
  CAST(sum(given_up) AS BIGINT) AS given_up,
  CAST(median(step_ms) AS BIGINT) AS p50_ms, CAST(max(step_ms) AS BIGINT) AS max_ms
FROM counted WHERE decided_at >= $from_at GROUP BY bucket ORDER BY bucket
"""

# A restart has another owner, too.
_CHANGES = """
SELECT decided_at AS changed_at, owner, previous FROM (
  SELECT decided_at, owner, lag(owner) OVER (ORDER BY epoch) AS previous FROM epochs
) WHERE previous IS NOT NULL AND owner <> previous ORDER BY changed_at
"""


@dataclass(frozen=True)
class History:
    """A span of a lake's time in buckets; a bucket without an epoch is missing. Units: ms.

    `buckets`: bucket, epochs, waiting, lag_ms, pending, landed, ended, given_up, p50_ms, max_ms.
    `is_cut`: older epochs of that time are left out. `changes`: restarts and take-overs:
    changed_at, owner, previous.
    """

    from_at: int
    until_at: int
    bucket_ms: int
    buckets: list[Row]
    is_cut: bool
    changes: Sequence[Row] = ()


def read_history(lake: Lake, now_ms: int, span_ms: int, pending: int) -> History:
    """Returns the epochs of the last `span_ms`. Input: how many halves are pending now."""
    newest, _ = latest_committed(lake)
    bounds: Bounds = {
        "epoch": (newest - EPOCHS_MAX + 1, newest),
        "epoch_at": (instant(now_ms - span_ms), None),
    }

    rows = read_rows(lake, "epochs", _EPOCH, bounds)
    plans = read_rows(lake, "epochs", ["epoch", "ranges"], {**bounds, "state": [PLANNED]})
    first = pc.min(rows["epoch"]).as_py() or 0
    read_bounds: Bounds = {"epoch": (first, newest)}
    late = read_rows(lake, "outcomes", _ENDED, read_bounds, pc.field("cause") == "late_end")
    late_offsets = sorted(set(late["queue_offset"].to_pylist()))
    landed = read_rows(lake, HALF, _ENDED, {**read_bounds, "queue_offset": late_offsets})
    epochs = run(
        _EPOCHS,
        {"committed": COMMITTED, "epoch": newest},
        rows=rows,
        late=late,
        landed=landed,
        behind=_behind(plans),
        rearmed=read_rearmed(lake, read_bounds),
    )

    is_cut = epochs.num_rows >= EPOCHS_MAX
    from_at = pc.min(epochs["decided_at"]).as_py() if is_cut else now_ms - span_ms
    bucket_ms = max(1, -(-(now_ms - from_at) // BUCKETS))

    values = {"from_at": from_at, "bucket_ms": bucket_ms, "buckets": BUCKETS, "pending": pending}
    buckets = run(_BUCKETS, values, epochs=epochs).to_pylist()
    changes = run(_CHANGES, epochs=epochs).to_pylist()
    return History(from_at, now_ms, bucket_ms, buckets, is_cut, changes)


def _behind(plans: pa.Table) -> pa.Table:
    """Returns how many records Kafka had that an epoch did not take. Output: epoch, waiting.

    Ranges are a list of structs: DuckDB takes 150 ms for those of 1,000 epochs, Arrow 1.
    """
    ranges = plans["ranges"].combine_chunks()
    epochs = plans["epoch"].combine_chunks().take(pc.list_parent_indices(ranges))
    to_offset, end_offset = (ranges.flatten().field(name) for name in ("to_offset", "end_offset"))

    rows = pa.table({"epoch": epochs, "waiting": pc.subtract(end_offset, to_offset)})
    sums = rows.group_by("epoch").aggregate([("waiting", "sum")])
    return sums.select(["epoch", "waiting_sum"]).rename_columns(["epoch", "waiting"])
