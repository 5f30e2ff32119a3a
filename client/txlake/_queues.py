"""A consumer's queues: the position of each, and the rows that were read ahead."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from txlake._lake import Lake
from txlake._message_filter import MessageFilter
from txlake._topic_reader import TopicReader
from txlake.errors import OffsetOutOfRangeError

log = logging.getLogger("txlake.consumer")

_FILTER_S = 0.2  # how long to read on at once while a filter lets nothing through

Queue = tuple[str, int]
Place = tuple[Queue, int]  # a queue and an offset


@dataclass(slots=True)
class _Buffer:
    position: int
    rows: pa.Table | None = None
    may_have_more: bool = True
    end: int = 0  # the position after the rows, and after what a filter has left out behind them
    due: int | None = None  # up to where rows were taken, or what was sought, until a commit

    def take(self, max_records: int) -> pa.Table:
        """Takes rows that were read ahead, of which there are some."""
        assert self.rows is not None
        taken = self.rows.slice(0, max_records)

        remaining = self.rows.slice(taken.num_rows)
        self.rows = remaining if remaining.num_rows else None
        self.position = self.end if self.rows is None else self.rows["queue_offset"][0].as_py()
        self.due = self.position
        return taken

    def put(self, rows: pa.Table, end: int) -> None:
        """Puts rows that were read ahead, perhaps none, up to a position."""
        self.rows = rows if rows.num_rows else None
        self.end = end
        self.may_have_more = True
        if self.rows is None:
            self.position = end


class QueueBuffers:
    """For each owned queue its position, and rows that follow it without a gap."""

    def __init__(
        self,
        lake: Lake,
        out_of_range_reset: str,
        filters: Mapping[str, MessageFilter] | None = None,
    ) -> None:
        self._filters = filters or {}
        self._lake = lake
        self._reset = out_of_range_reset
        self._readers: dict[str, TopicReader] = {}
        self._buffers: dict[Queue, _Buffer] = {}
        self._turn = 0

    def add(self, topic: str, table_id: int, queue_id: int, position: int) -> None:
        """Begins to read a queue."""
        self._reader(topic, table_id)
        self._buffers[topic, queue_id] = _Buffer(position)

    def remove(self, queues: Iterable[Queue]) -> None:
        """Ends to read queues."""
        for queue in queues:
            del self._buffers[queue]
        self.close_unused()

    def close_unused(self) -> None:
        """Drops the readers of topics of which no queue is read: each look would refresh them."""
        topics = {topic for topic, _ in self._buffers}
        self._readers = {
            topic: reader for topic, reader in self._readers.items() if topic in topics
        }

    def _reader(self, topic: str, table_id: int) -> TopicReader:
        if topic not in self._readers:
            uri = self._lake.uri(f"topics/{table_id}")
            self._readers[topic] = TopicReader(topic, uri, self._lake.storage_options)
        return self._readers[topic]

    def seek(self, topic: str, queue_id: int, position: int) -> None:
        """Drops the rows that were read ahead, and goes on at another position."""
        self._buffers[topic, queue_id] = _Buffer(position, due=position)

    def positions(self) -> dict[Queue, int]:
        """Returns the next offset of each queue."""
        return {queue: buffer.position for queue, buffer in self._buffers.items()}

    def due(self, queue: Queue) -> int | None:
        """Returns the position that a commit is to reach, if rows were taken or one was sought.

        What a filter leaves out needs no commit.
        """
        return self._buffers[queue].due

    def note_committed(self, positions: Mapping[Queue, int]) -> None:
        """Notes that positions are committed."""
        for queue, buffer in self._buffers.items():
            if buffer.due is not None and positions.get(queue, -1) >= buffer.due:
                buffer.due = None

    def begins(self) -> dict[Queue, int]:
        """Returns the first offset that each queue still has, as the tables are now."""
        return self._offsets_by_queue(TopicReader.begins)

    def ends(self) -> dict[Queue, int]:
        """Returns the end of each queue as the tables are now."""
        return self._offsets_by_queue(TopicReader.ends)

    def _offsets_by_queue(
        self, read: Callable[[TopicReader, list[int]], dict[int, int]]
    ) -> dict[Queue, int]:
        """Returns an offset of each queue, which `read` returns for the queues of a topic."""
        offsets: dict[Queue, int] = {}

        for topic, reader in self._readers.items():
            self._refresh(topic, reader)
            queue_ids = [queue_id for name, queue_id in self._buffers if name == topic]
            for queue_id, offset in read(reader, queue_ids).items():
                offsets[topic, queue_id] = offset

        return offsets

    def first_offsets(
        self, queues: Iterable[Queue], table_ids: Mapping[str, int], at: str
    ) -> dict[Queue, int]:
        """Returns where any queues begin (`earliest`) or end (`latest`), read here or not.

        Input: the table of each topic. The readers stay until `close_unused`.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, queue_id in queues:
            by_topic.setdefault(topic, []).append(queue_id)

        offsets: dict[Queue, int] = {}
        for topic, queue_ids in by_topic.items():
            reader = self._reader(topic, table_ids[topic])
            self._refresh(topic, reader)
            read = reader.begins if at == "earliest" else reader.ends
            offsets |= {(topic, queue_id): first for queue_id, first in read(queue_ids).items()}
        return offsets

    def offsets_at(self, queues: list[Queue], epoch: int | None) -> dict[Queue, int]:
        """Returns the first offset of each queue that an epoch or a later one has delivered.

        Input: `epoch`: None: where each queue ends.
        """
        offsets: dict[Queue, int] = {}
        for topic in {topic for topic, _ in queues}:
            reader = self._readers[topic]
            self._refresh(topic, reader)
            queue_ids = [queue_id for name, queue_id in queues if name == topic]

            if epoch is None:
                first_offsets = reader.ends(queue_ids)
            else:
                first_offsets = reader.offsets_from_epoch(queue_ids, epoch)
            offsets |= {(topic, queue_id): offset for queue_id, offset in first_offsets.items()}
        return offsets

    def lag(self) -> dict[Queue, int]:
        """Returns how many messages each queue holds after its position."""
        ends = self.ends()
        begins = self.begins()

        return {
            queue: ends[queue] - max(position, begins[queue])
            for queue, position in self.positions().items()
        }

    def has_rows(self) -> bool:
        """Returns whether any rows were read ahead."""
        return any(buffer.rows is not None for buffer in self._buffers.values())

    def may_have_news(self) -> bool:
        """Returns whether a read might bring something: a cheap look at local tables."""
        if any(buffer.may_have_more for buffer in self._buffers.values()):
            return True
        return any(reader.may_have_news() for reader in self._readers.values())

    def fill(self) -> bool:
        """Reads ahead for queues that have no rows here and might have more.

        Output: whether a table has a new version.
        """
        is_new = False

        for topic, reader in self._readers.items():
            is_new |= self._refresh(topic, reader)

            until = time.monotonic() + _FILTER_S
            while self._read_ahead(topic, reader) and time.monotonic() < until:
                continue

        return is_new

    def _read_ahead(self, topic: str, reader: TopicReader) -> bool:
        """Reads ahead once. Output: whether a filter has left all of it out."""
        positions = {
            queue_id: buffer.position
            for (name, queue_id), buffer in self._buffers.items()
            if name == topic and buffer.rows is None and buffer.may_have_more
        }
        read = self._read(topic, reader, positions) if positions else {}

        for queue_id in positions:
            buffer = self._buffers[topic, queue_id]
            if queue_id in read:
                buffer.put(*read[queue_id])
            else:
                buffer.may_have_more = False

        return bool(read) and not any(rows.num_rows for rows, _ in read.values())

    def _read(
        self, topic: str, reader: TopicReader, positions: dict[int, int]
    ) -> dict[int, tuple[pa.Table, int]]:
        """Reads ahead; goes on where a queue begins or ends if its next message is deleted.

        Errors: OffsetOutOfRangeError if the consumer is to stop there.
        """
        try:
            return self._read_window(topic, reader, positions)
        except OffsetOutOfRangeError:
            if self._reset == "stop":
                raise

        begins = reader.begins(positions)
        targets = begins if self._reset == "earliest" else reader.ends(list(positions))

        for queue_id, position in positions.items():
            if position < begins[queue_id]:
                log.warning(
                    "topic %s queue %d: messages from %d on are deleted, and were not read; the "
                    "consumer goes on at %d",
                    topic,
                    queue_id,
                    position,
                    targets[queue_id],
                )
                self.seek(topic, queue_id, targets[queue_id])

        moved = {queue_id: self._buffers[topic, queue_id].position for queue_id in positions}
        return self._read_window(topic, reader, moved)

    def _read_window(
        self, topic: str, reader: TopicReader, positions: dict[int, int]
    ) -> dict[int, tuple[pa.Table, int]]:
        """Returns the rows that the topic's filter lets through, and the position after them."""
        if topic in self._filters:
            return reader.read_matching(positions, self._filters[topic])

        return {
            queue_id: (rows, positions[queue_id] + rows.num_rows)
            for queue_id, rows in reader.read(positions).items()
        }

    def take(
        self, max_records: int, *, without: Collection[Queue] = ()
    ) -> list[tuple[str, pa.Table]]:
        """Takes rows, each queue's in order; each call begins with another queue.

        Input: `without`: queues of which to take nothing.
        Output: topics with rows of theirs.
        """
        queues = [queue for queue in self._buffers if queue not in without]
        self._turn += 1
        start = self._turn % len(queues) if queues else 0

        taken: list[tuple[str, pa.Table]] = []
        for topic, queue_id in queues[start:] + queues[:start]:
            buffer = self._buffers[topic, queue_id]
            if buffer.rows is None or not max_records:
                continue

            rows = buffer.take(max_records)
            taken.append((topic, rows))
            max_records -= rows.num_rows

        return taken

    def take_of(self, queue: Queue, max_records: int) -> tuple[pa.Table | None, int]:
        """Takes rows of one queue. Output: the rows, if any, and the position after them."""
        buffer = self._buffers[queue]
        rows = None if buffer.rows is None else buffer.take(max_records)
        return rows, buffer.position

    def read_places(self, places: Iterable[Place]) -> tuple[dict[Queue, pa.Table], list[Place]]:
        """Reads single messages, whatever was read ahead: those of a topic in one read.

        Output: the rows that are there, by queue, and the places whose messages are deleted. A
        place behind the end of its queue is in neither.
        Errors: OffsetGapError, LakeError.
        """
        offsets: dict[str, dict[int, list[int]]] = {}
        for (topic, queue_id), offset in sorted(places):
            offsets.setdefault(topic, {}).setdefault(queue_id, []).append(offset)

        rows: dict[Queue, pa.Table] = {}
        deleted: list[Place] = []
        for topic, by_queue in offsets.items():
            reader = self._readers[topic]
            self._refresh(topic, reader)  # one that was just opened knows no files yet

            read = reader.read_offsets(by_queue)
            rows |= {(topic, queue_id): read_rows for queue_id, read_rows in read.items()}

            for queue_id, wanted in by_queue.items():
                present = read[queue_id]["queue_offset"].to_pylist() if queue_id in read else []
                missing = sorted(set(wanted).difference(present))
                begin = reader.begins([queue_id])[queue_id] if missing else 0

                deleted += [((topic, queue_id), offset) for offset in missing if offset < begin]
                for offset in missing:
                    if offset >= begin:
                        reader.read({queue_id: offset}, rows_max=1)  # a gap is an error of it

        return rows, deleted

    def _refresh(self, topic: str, reader: TopicReader) -> bool:
        is_new = reader.refresh()
        if is_new:
            for (name, _), buffer in self._buffers.items():
                if name == topic:
                    buffer.may_have_more = True
        return is_new
