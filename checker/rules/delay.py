"""When a delayed message is due.

Source: RocketMQ's ScheduleMessageService (18 levels); PROTOCOL.md "Delay".
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DELAYED, Parameters
from checker.frames_ops.columns import Mask, to_mask
from checker.frames_ops.sql import select

# The due time; null: the message is due at once. DELIVER_AT goes before the span, and that before
# the level. A level above the last counts as the last, a time or a span beyond the maximum as the
# maximum, an instant after the last that a column holds as that one. `counted_from`: `stored_at` of
# a schedule record, `epoch_at` for a committed half.
DELIVER_AT_SQL = """
  CASE
    WHEN deliver_at IS NOT NULL AND ($deliver_at_goes_first OR coalesce(delay_level, 0) <= 0)
      THEN CASE WHEN least(deliver_at, counted_from + $deliver_at_max_ms) > $epoch_at
        THEN least(deliver_at, counted_from + $deliver_at_max_ms, $due_at_max) END
    WHEN delay_ms IS NOT NULL AND ($deliver_at_goes_first OR coalesce(delay_level, 0) <= 0)
      THEN least(counted_from + least(delay_ms, $deliver_at_max_ms), $due_at_max)
    WHEN delay_level > 0
      THEN least(counted_from + ($levels)[least(delay_level, len($levels))], $due_at_max)
  END
"""


def is_due(deliver_at: pa.ChunkedArray, epoch_at: int) -> Mask:
    """Returns for each message whether it is delivered now. A null `deliver_at` is due."""
    return ~to_mask(pc.greater(deliver_at, epoch_at))


def delay_parameters(epoch_at: int, parameters: Parameters) -> dict[str, object]:
    """Returns the values that DELIVER_AT_SQL takes."""
    return {
        "epoch_at": epoch_at,
        "levels": list(parameters.delay_levels_ms),
        "deliver_at_max_ms": parameters.deliver_at_max_ms,
        "deliver_at_goes_first": parameters.deliver_at_goes_first,
        "due_at_max": parameters.due_at_max,
    }


def admit_schedules(schedules: pa.Table, epoch_at: int, parameters: Parameters) -> pa.Table:
    """Returns the readable schedule records of this epoch, each with its due time.

    Input: NEW_SCHEDULES.
    Output: DELAYED; without a delay the due time is `stored_at`, at most `epoch_at`.
    """
    return select(
        DELAYED,
        f"""
        SELECT 'schedule' AS source, queue_id, queue_offset,
          coalesce({DELIVER_AT_SQL}, least(counted_from, $epoch_at))::BIGINT AS deliver_at,
          real_topic, real_queue_id, producer_group
        FROM (SELECT *, stored_at AS counted_from FROM schedules WHERE error IS NULL)
        ORDER BY queue_id, queue_offset
        """,
        delay_parameters(epoch_at, parameters),
        schedules=schedules,
    )
