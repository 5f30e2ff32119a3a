"""In how many tasks an epoch is landed and delivered, known before a byte of it is read.

Its records are counted, and as large as those of recent epochs. A wrong guess costs time only.
"""

from __future__ import annotations

from typing import Final

# What one task is for. Below, another one costs more than it gains.
TASK_ROWS: Final = 25_000
TASK_BYTES: Final = 16 * 1024 * 1024
# A task that delivers has all its placements in memory, some hundred bytes a message.
DELIVERY_ROWS_MAX: Final = 50_000
# Up to this the driver delivers by itself.
DRIVER_BYTES: Final = 16 * 1024 * 1024
_FIRST_BYTES = 1_024.0  # of a message, while nothing is known
_WEIGHT = 0.5  # of the newest epoch


class Sizes:
    """How large messages are, and what follows of it.

    Input: how many tasks run at once; `deliveries`: auto, driver, executors.
    """

    def __init__(self, parallelism: int, deliveries: str = "auto") -> None:
        self._parallelism = max(1, parallelism)
        self._deliveries = deliveries
        self._mean_bytes = _FIRST_BYTES

    def saw(self, messages: int, size: int) -> None:
        """Learn from an epoch, when it has landed so many messages of so many bytes."""
        if messages:
            self._mean_bytes += _WEIGHT * (size / messages - self._mean_bytes)

    def landing_tasks(self, records: int) -> int:
        """Return how many tasks land so many records: at least two, to wait for Kafka together."""
        return max(min(2, self._parallelism), self._tasks(records))

    def delivery_tasks(self, messages: int) -> int:
        """Return how many tasks deliver so many messages; 0: the driver does."""
        if self._deliveries == "driver":
            return 0
        if self._deliveries == "auto" and messages * self._mean_bytes <= DRIVER_BYTES:
            return 0
        return max(self._tasks(messages), -(-messages // DELIVERY_ROWS_MAX))

    def _tasks(self, rows: int) -> int:
        wanted = max(rows // TASK_ROWS, int(rows * self._mean_bytes) // TASK_BYTES) + 1
        return min(wanted, self._parallelism)
