"""Compares destinations with the tables: count, order, key, value, headers of each queue.

Both sides are read once; each record becomes a part of a digest of its block of queue offsets. A
problem names the first block of a queue that differs. Where retention deletes messages of the lake
meanwhile, a queue is compared from the first whole block that is still there.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.publish.committed import CommittedRows, open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.progress import Adoption, ProgressLog, Skip
from pipelines.publish.reading import published_record
from pipelines.publish.records import RecordMaker
from pipelines.publish.topics import wanted_topics
from pipelines.settings import PublisherSettings, Settings
from pipelines.settings.publish import EARLIEST, LATEST
from txlake._counted import counted
from txlake.errors import OffsetOutOfRangeError

_BLOCK: Final = 1_000  # queue offsets
_READ_ROWS: Final = 20_000


@dataclass
class QueueDigest:
    """The records of one queue, from its first offset to its last, as digests.

    `problem`: a record that is out of order, or is there twice.
    """

    first: int | None = None
    last: int = -1
    count: int = 0
    problem: str = ""
    blocks: dict[int, Any] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)  # of records, by block

    def add(self, offset: int, key: bytes | None, value: bytes | None, headers: list[Any]) -> None:
        """Adds the next record of the queue."""
        if self.first is None:
            self.first = offset
        elif offset <= self.last and not self.problem:
            self.problem = f"queue offset {offset} comes after {self.last}"

        self.last = max(self.last, offset)
        self.count += 1

        content = json.dumps([offset, _hex(key), _hex(value), [[n, _hex(v)] for n, v in headers]])
        block = offset // _BLOCK
        self.counts[block] += 1
        if block not in self.blocks:
            self.blocks[block] = hashlib.blake2b()
        self.blocks[block].update(content.encode())

    def since(self, begin: int) -> QueueDigest:
        """Returns the digest of the blocks that begin at a queue offset or later."""
        counts = Counter({b: n for b, n in self.counts.items() if b * _BLOCK >= begin})
        return QueueDigest(
            min(counts) * _BLOCK if counts else None,
            self.last,
            counts.total(),
            self.problem,
            {block: self.blocks[block] for block in counts},
            counts,
        )


def difference(published: QueueDigest, table: QueueDigest) -> str:
    """Returns how a queue's records differ from its table's rows, in words; empty if they do not.

    Input: the table's rows of the offsets that are published.
    """
    if published.problem:
        return published.problem
    if published.count != table.count:
        return (
            f"{counted(published.count, 'record')} published, and "
            f"{counted(table.count, 'message')} in the table"
        )

    for block, digest in sorted(table.blocks.items()):
        published_digest = published.blocks.get(block)
        if published_digest is None or published_digest.digest() != digest.digest():
            first = block * _BLOCK
            return (
                f"keys, values or headers differ in queue offsets {first} to {first + _BLOCK - 1}"
            )

    return ""


@dataclass(frozen=True)
class VerifiedQueue:
    """One queue of one topic, compared. `problem`: empty if it is sound."""

    topic: str
    queue_id: int
    first: int | None
    count: int
    problem: str


def verify_published(
    settings: Settings, publisher: PublisherSettings, from_offset: int = 0
) -> Iterator[VerifiedQueue]:
    """Compares each queue that a publisher has published, from a queue offset on.

    Messages that retention has deleted, of Kafka or of the lake, are left out, and the records that
    stood there when this lake was last said to begin at its first message, or at what comes.
    Errors: KafkaAwayError; LakeError.
    """
    lake = open_lake(settings.lake.path, settings.lake.store)
    destination = Destination(publisher)
    log_before = destination.progress()
    mine = log_before.of(lake.lake_id, publisher.name)

    for name, topic in sorted(wanted_topics(publisher, lake.topics()).items()):
        progress = mine.get(name)
        if progress is None:
            continue

        queues = range(topic.queue_count)
        rows = CommittedRows(lake, name, topic)
        begins = rows.begins(queues) if any(progress.next_offsets) else {}
        published = {queue_id: QueueDigest() for queue_id in queues}
        adoption = _newest_run(log_before, lake.lake_id, progress.topic_id)
        for message in destination.records(progress.destination):
            record = published_record(message)
            if record is None or record.lake_id != lake.lake_id:
                continue

            queue_id = int(message.partition())
            if adoption is not None and message.offset() < adoption.end_of(queue_id):
                continue

            offset = record.queue_offset
            queue = published.setdefault(queue_id, QueueDigest())
            if offset >= max(from_offset, begins.get(queue_id, 0)):
                queue.add(offset, message.key(), message.value(), message.headers())

        # A publisher at work goes on meanwhile: the progress of now covers all that was read.
        # What stands behind an open transaction of another publisher belongs to it.
        log = destination.progress(is_patient=True)
        progress_now = log.of(lake.lake_id, publisher.name).get(name, progress)
        maker = RecordMaker(name, lake.lake_id, has_keys=publisher.key == "keys")
        skips = log.skips_of(lake.lake_id, publisher.name, name)

        for queue_id in queues:
            digest = published[queue_id]
            if digest.first is None:
                yield VerifiedQueue(name, queue_id, None, 0, "")
                continue

            last = progress_now.last_offset(queue_id)
            if digest.last > last:
                problem = (
                    f"queue offset {digest.last} is published, and the progress ends at {last}"
                )
            else:
                end = max(digest.last, progress.last_offset(queue_id)) + 1
                digest, problem = _compared(digest, rows, maker, queue_id, end, skips)
            yield VerifiedQueue(name, queue_id, digest.first, digest.count, problem)


def _newest_run(log: ProgressLog, lake_id: str, topic_id: str) -> Adoption | None:
    """Returns the newest adoption that did not go on behind the last records of a destination."""
    adoptions = [
        adoption
        for lake, adoption in log.adoptions_of(topic_id)
        if lake == lake_id and adoption.position in (EARLIEST, LATEST)
    ]
    return adoptions[-1] if adoptions else None


def _compared(
    published: QueueDigest,
    rows: CommittedRows,
    maker: RecordMaker,
    queue_id: int,
    end: int,
    skips: Mapping[int, list[Skip]],
) -> tuple[QueueDigest, str]:
    """Compares what is published of a queue with its table.

    Output: what was compared, without what retention has deleted meanwhile; how it differs.
    """
    while published.first is not None:
        try:
            table = _table_digest(rows, maker, queue_id, published.first, end, skips)
        except OffsetOutOfRangeError:
            published = published.since(rows.begins([queue_id])[queue_id])
        else:
            return published, difference(published, table)

    return published, published.problem


def _table_digest(
    rows: CommittedRows,
    maker: RecordMaker,
    queue_id: int,
    first: int,
    end: int,
    skips: Mapping[int, list[Skip]],
) -> QueueDigest:
    digest = QueueDigest()
    rows.seek(queue_id, first)

    while first < end:
        first = min(first + _READ_ROWS, end)
        for _, taken in rows.take({queue_id: first}):
            offsets = taken["queue_offset"].to_pylist()
            for offset, (value, key, _, headers) in zip(offsets, maker.records(taken), strict=True):
                if not _is_skipped(offset, skips.get(queue_id, [])):
                    digest.add(offset, key, value, headers)

    return digest


def _is_skipped(offset: int, skips: list[Skip]) -> bool:
    return any(skip.from_offset <= offset <= skip.to_offset for skip in skips)


def _hex(content: str | bytes | None) -> str | None:
    raw = content.encode() if isinstance(content, str) else content
    return None if raw is None else raw.hex()
