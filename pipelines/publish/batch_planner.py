"""The ends of the Kafka transactions that publish a backlog, from the rows that come next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from pipelines.publish.batch_limits import (
    ALONE,
    UNIT_COLUMNS,
    QueueRows,
    cuts,
    has_large_epoch,
    units_of,
)
from pipelines.publish.committed import AHEAD_BYTES, Queue
from pipelines.publish.topics import PublishedTopic, group_by_topic
from pipelines.publish.transaction_limit import TransactionLimit
from pipelines.settings import PublisherSettings

_PLAN_ROWS: Final = 100_000  # the rows of a backlog that are read to find where to cut
_PLAN_ROWS_MIN: Final = 1_000
_AHEAD_BYTES_MIN: Final = 262_144  # that a topic reads ahead where many are behind


class BatchPlanner:
    """Plans where the transactions of one publisher end. Input: its open topics, by name."""

    def __init__(
        self,
        publisher: PublisherSettings,
        limit: TransactionLimit,
        topics: Mapping[str, PublishedTopic],
    ) -> None:
        self._publisher = publisher
        self._limit = limit
        self._topics = topics
        self._has_large_epochs = False  # the last plan: one was larger than the limit

    def cuts(self, behind: Mapping[Queue, int]) -> Iterator[dict[Queue, int]]:
        """Yields where each transaction ends: by queue, the offset that comes after it.

        Input: where each queue ends that has messages to publish.
        """
        ends_by_topic = group_by_topic(behind)
        for name, ends in ends_by_topic.items():
            rows = self._topics[name].rows
            rows.bytes_max = max(_AHEAD_BYTES_MIN, AHEAD_BYTES // len(ends_by_topic))
            rows.read_ahead(ends)

        rows_max = self._rows_max()
        if self.count(behind) <= rows_max:
            yield dict(behind)
            return

        yield from self._planned_cuts(behind, rows_max)

    def _planned_cuts(
        self, behind: Mapping[Queue, int], rows_max: int
    ) -> Iterator[dict[Queue, int]]:
        """Yields the next cuts of a backlog."""
        behind = {  # but for queues whose last messages were skipped
            (name, queue_id): end
            for (name, queue_id), end in behind.items()
            if self._topics[name].rows.positions[queue_id] < end
        }
        queues = list(behind)
        starts = [self._topics[name].rows.positions[queue_id] for name, queue_id in queues]
        plan_rows = max(_PLAN_ROWS, 2 * rows_max)
        has_units = self._has_large_epochs
        planned: list[tuple[int, ...]] = []

        while not planned:
            rows_of_each = max(_PLAN_ROWS_MIN, plan_rows // len(queues))
            rows = self._queue_rows(behind, rows_of_each, has_units=has_units)
            is_large = has_large_epoch(rows, rows_max)
            if is_large and not has_units:
                has_units = True
                rows = self._queue_rows(behind, rows_of_each, has_units=True)
            planned = cuts(rows, rows_max)
            plan_rows *= 2
        self._has_large_epochs = is_large

        for counts in planned:
            yield {
                queue: start + count
                for queue, start, count in zip(queues, starts, counts, strict=True)
            }

    def _queue_rows(
        self, behind: Mapping[Queue, int], rows_max: int, *, has_units: bool
    ) -> list[QueueRows]:
        """Returns the rows by which queues can be cut.

        Input: where each queue ends; the number of rows of each; whether message transactions are
        told apart: else each message counts as one.
        Errors: LakeError; OffsetOutOfRangeError where a queue's next message is deleted.
        """
        columns = ["epoch", *(UNIT_COLUMNS if has_units else ())]
        tables = {}
        for name, ends in group_by_topic(behind).items():
            rows = self._topics[name].rows
            peeked = rows.peek(ends, rows_max, columns)
            for queue_id, end in ends.items():
                if queue_id not in peeked:
                    raise rows.lacking_error(queue_id, end)
                tables[name, queue_id] = peeked[queue_id]
        units = units_of(tables[queue] for queue in behind) if has_units else None

        queue_rows = []
        start = 0
        for queue, end in behind.items():
            table = tables[queue]
            count = table.num_rows
            name, queue_id = queue
            queue_rows.append(
                QueueRows(
                    table["epoch"].to_numpy(),
                    np.full(count, ALONE) if units is None else units[start : start + count],
                    self._topics[name].rows.positions[queue_id] + count >= end,
                )
            )
            start += count

        return queue_rows

    def _rows_max(self) -> int:
        sizes = [topic.rows.row_bytes() for topic in self._topics.values()]
        largest = max(sizes, default=0.0)
        by_bytes = self._publisher.transaction_bytes_max / largest if largest else float("inf")
        return max(1, int(min(self._limit.messages, by_bytes)))

    def count(self, until: Mapping[Queue, int]) -> int:
        """Returns the number of messages up to an offset of each queue."""
        return sum(
            end - self._topics[name].rows.positions[queue_id]
            for (name, queue_id), end in until.items()
        )
