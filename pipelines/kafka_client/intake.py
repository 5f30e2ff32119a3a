"""How much a job takes from Kafka at once: records a poll, offsets an epoch.

Kafka's client unpacks all records of a poll before the first is used, and its own limits count what
is compressed: 500 records of 0.95 MiB were 273 KB in Kafka. So the heap bounds the records.
"""

from __future__ import annotations

import logging
from typing import Final

from pipelines.jvm.heap import LandingHeap
from pipelines.settings import Settings

log = logging.getLogger("txlake.kafka")

# The share of the heap that the polls of all tasks may fill. While a poll is unpacked, the one
# before is still held, so they fill twice that. The young generation is a quarter of the heap.
_HEAP_SHARE: Final = 8
# The share of the heap that the texts of an epoch's records may have, of all tasks together.
_NARROW_SHARE: Final = 3
# Kafka's default. After each poll Spark asks the broker twice, so few records cost time.
POLL_RECORDS_MAX: Final = 500


def poll_records_max(heap: LandingHeap, record_bytes_max: int) -> int:
    """Returns how many records of the largest size Kafka's client may unpack at once, at least 1.

    Units: `record_bytes_max`: bytes, unpacked.
    """
    share = heap.bytes // _HEAP_SHARE // heap.tasks
    return max(1, min(POLL_RECORDS_MAX, share // record_bytes_max))


class Intake:
    """The bounds of what a job takes from Kafka at once.

    `divisor`: 4 and more in a run whose predecessor died while it landed; it divides both bounds.
    Input: the heap of a JVM that lands; the largest record that the settings allow, in bytes; the
    maximum of an epoch's offsets.
    """

    def __init__(
        self, heap: LandingHeap, message_bytes_max: int, max_offsets_per_trigger: int
    ) -> None:
        self._heap = heap
        self._record_bytes_max = message_bytes_max
        self._epoch_offsets = max_offsets_per_trigger
        self._logged_records = 0
        self.divisor = 1

    @classmethod
    def of(cls, settings: Settings, heap: LandingHeap | None = None) -> Intake:
        """Returns the bounds of a job; without a heap those of a local job."""
        return cls(
            heap or LandingHeap(),
            settings.transaction.message_bytes_max,
            settings.stream.max_offsets_per_trigger,
        )

    def topics_take(self, batch_bytes_max: int) -> None:
        """Notes the largest batch that a topic takes: a record of that size can come, too."""
        self._record_bytes_max = max(self._record_bytes_max, batch_bytes_max)

    @property
    def poll_records(self) -> int:
        """Returns how many records Kafka's client unpacks at once."""
        return max(1, poll_records_max(self._heap, self._record_bytes_max) // self.divisor)

    @property
    def epoch_offsets(self) -> int:
        """Returns the maximum of an epoch's offsets."""
        return max(1, self._epoch_offsets // self.divisor)

    @property
    def narrow_bytes(self) -> int:
        """Returns the bytes of long texts that a task may return; JVM and driver hold them."""
        return self._heap.bytes // _NARROW_SHARE // self._heap.tasks

    def tell(self) -> None:
        """Logs the bound of a poll, if it has changed."""
        if self.poll_records == self._logged_records:
            return

        self._logged_records = self.poll_records
        log.info(
            "a poll of Kafka takes up to %d records: each can have %d bytes, and %d tasks share a "
            "heap of %d MiB",
            self.poll_records,
            self._record_bytes_max,
            self._heap.tasks,
            self._heap.bytes >> 20,
        )
