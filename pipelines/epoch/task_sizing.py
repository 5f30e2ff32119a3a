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
# Up to this size the driver delivers by itself.
DRIVER_BYTES: Final = 16 * 1024 * 1024
_FIRST_BYTES = 1_024.0  # of a message, before the first epoch
_WEIGHT = 0.5  # weight of the newest epoch


class TaskSizing:
    """The mean size of messages, and the number of tasks that follows from it.

    Input: `parallelism`: the number of tasks that run at once; `deliveries`: auto, driver,
    executors.
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
        """Returns the number of tasks that land `records`: at least two, to overlap their waits."""
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
