"""When a delayed message may be delivered.

Source: RocketMQ's ScheduleMessageService (18 levels); PROTOCOL.md "Delay".
"""

from __future__ import annotations

import pyarrow as pa

from checker.frames import DELAYED, Parameters
from checker.sql import run

# A level above the last is the last; 0 or none is no delay; a time beyond the maximum is the
# maximum, and one not after T is no delay. `counted_from` is the schedule record's broker time, or
# T for a committed half.
DELIVER_AT_SQL = """
  CASE
    WHEN delay_level > 0 THEN counted_from + ($levels)[least(delay_level, len($levels))]
    WHEN least(deliver_at, counted_from + $deliver_at_max_ms) > $epoch_at
      AND deliver_at IS NOT NULL THEN least(deliver_at, counted_from + $deliver_at_max_ms)
  END
"""


def delay_parameters(epoch_at: int, parameters: Parameters) -> dict[str, object]:
    """Return the values that DELIVER_AT_SQL takes."""
    return {
        "epoch_at": epoch_at,
        "levels": list(parameters.delay_levels_ms),
        "deliver_at_max_ms": parameters.deliver_at_max_ms,
    }


def admit_schedules(schedules: pa.Table, epoch_at: int, parameters: Parameters) -> pa.Table:
    """Return the readable schedule records of this epoch, each with its due time.

    Input: NEW_SCHEDULES. Output: DELAYED; without a delay it is due since it was stored, or since
    T where the broker's clock is ahead.
    """
    if schedules.num_rows == 0:
        return DELAYED.empty_table()
    return run(
        f"""
        SELECT 'schedule' AS source, queue_id, queue_offset,
          coalesce({DELIVER_AT_SQL}, least(counted_from, $epoch_at))::BIGINT AS deliver_at,
          real_topic, real_queue_id
        FROM (SELECT *, stored_at AS counted_from FROM schedules WHERE error IS NULL)
        ORDER BY queue_id, queue_offset
        """,
        delay_parameters(epoch_at, parameters),
        schedules=schedules,
    ).cast(DELAYED)
