"""The number of tasks for landing and for delivering, known before a byte of an epoch is read.

The number of records is known; their size is taken from recent epochs. A wrong guess costs only
time.
"""

from __future__ import annotations

from typing import Final

# The share of one task. For less, another task costs more than it gains.
TASK_ROWS: Final = 25_000
TASK_BYTES: Final = 16 * 1024 * 1024
# A delivering task has all its placements in memory, some hundred bytes a message.
DELIVERY_ROWS_MAX: Final = 50_000
# Up to this size the driver lands and delivers by itself: a Spark job takes longer.
DRIVER_BYTES: Final = 16 * 1024 * 1024
# It reads and decodes so many records in a tenth of a second, and Spark begins no job in less.
DRIVER_ROWS: Final = 10_000
_FIRST_BYTES = 1_024.0  # of a message, before the first epoch
_WEIGHT = 0.5  # weight of the newest epoch


class TaskSizing:
    """The mean size of messages, and the number of tasks that follows from it.

    Input: `parallelism`: the number of tasks that run at once; `deliveries`: auto, driver,
    executors: where bytes are moved.
    """

    def __init__(self, parallelism: int, deliveries: str = "auto") -> None:
        self._parallelism = max(1, parallelism)
        self._deliveries = deliveries
        self._mean_bytes = _FIRST_BYTES

    def observe(self, messages: int, size: int) -> None:
        """Updates the mean size. Input: the numbers of messages and bytes that an epoch landed."""
        if messages:
            self._mean_bytes += _WEIGHT * (size / messages - self._mean_bytes)

    def landing_tasks(self, records: int) -> int:
        """Returns the number of tasks that land `records`; 0: the driver lands them.

        At least two, to overlap their waits.
        """
        is_few = records <= DRIVER_ROWS and records * self._mean_bytes <= DRIVER_BYTES
        if self._deliveries == "driver" or (self._deliveries == "auto" and is_few):
            return 0
        return self.spark_tasks(records)

    def spark_tasks(self, records: int) -> int:
        """Returns the number of Spark's tasks that land `records`, if the driver does not."""
        return max(min(2, self._parallelism), self._tasks(records))

    def delivery_tasks(self, messages: int) -> int:
        """Returns the number of tasks that deliver `messages`; 0: the driver delivers."""
        if self._deliveries == "driver":
            return 0
        if self._deliveries == "auto" and messages * self._mean_bytes <= DRIVER_BYTES:
            return 0
        return max(self._tasks(messages), -(-messages // DELIVERY_ROWS_MAX))

    def _tasks(self, rows: int) -> int:
        wanted = max(rows // TASK_ROWS, int(rows * self._mean_bytes) // TASK_BYTES) + 1
        return min(wanted, self._parallelism)
