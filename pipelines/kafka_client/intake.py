"""How much a job takes from Kafka at once: bytes a fetch, offsets an epoch, bytes in the driver."""

from __future__ import annotations

from typing import Final

from pipelines.jvm.heap import LandingHeap
from pipelines.settings import Settings
from storage.tasks.kafka_reader import FETCH_BYTES

# A third of the heap is for the long texts of an epoch's records, of all tasks together.
_HEAP_DIVISOR: Final = 3


class Intake:
    """The bounds of what a job takes from Kafka at once.

    Input: the heap of a JVM that lands; the maximum of an epoch's offsets.
    `divisor`: what the bounds of a fetch and of an epoch are divided by. It is 4 or more in a run
    whose predecessor died while it landed, since too much at once can have been the cause.
    """

    def __init__(self, heap: LandingHeap, max_offsets_per_trigger: int) -> None:
        self._heap = heap
        self._epoch_offsets = max_offsets_per_trigger
        self.divisor = 1

    @classmethod
    def of(cls, settings: Settings, heap: LandingHeap | None = None) -> Intake:
        """Returns the bounds of a job; without a heap those of a local job."""
        return cls(heap or LandingHeap(), settings.stream.max_offsets_per_trigger)

    @property
    def fetch_bytes(self) -> int:
        """Returns the bytes that a task fetches from Kafka at once, as Kafka compressed them."""
        return max(1, FETCH_BYTES // self.divisor)

    @property
    def epoch_offsets(self) -> int:
        """Returns the maximum of an epoch's offsets."""
        return max(1, self._epoch_offsets // self.divisor)

    @property
    def driver_bytes_max(self) -> int:
        """Returns the bytes that long texts of one task's records may take in JVM and driver.

        Records come there without their bodies; what is left is short, but for long keys and names.
        """
        return self._heap.bytes // _HEAP_DIVISOR // self._heap.tasks
