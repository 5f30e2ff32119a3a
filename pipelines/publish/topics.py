"""The topics of one publisher: their names, other owners of their destinations, their progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.publish.committed import CommittedRows, Queue
from pipelines.publish.errors import PublishError
from pipelines.publish.progress import (
    ProgressLog,
    Skip,
    Start,
    TopicProgress,
    after_skips,
    before_skips,
)
from pipelines.publish.records import RecordMaker
from pipelines.settings import PublisherSettings, Settings
from pipelines.settings.publish import EARLIEST, LATEST, begin_at
from txlake import protocol as p
from txlake._lake import Topic


@dataclass
class PublishedTopic:
    """A topic that is published: its progress, its rows, the maker of its records."""

    name: str
    queues: int
    progress: TopicProgress
    rows: CommittedRows
    maker: RecordMaker
    skips: Mapping[int, list[Skip]]

    def next_offset(self, queue_id: int) -> int:
        """Returns the queue offset that comes next, past the messages that were skipped there."""
        return after_skips(self.progress.next_offset(queue_id), self.skips.get(queue_id, ()))

    def seek(self) -> None:
        """Goes back to what comes next."""
        for queue_id in range(self.queues):
            self.rows.seek(queue_id, self.next_offset(queue_id))

    def without_skipped(self, queue_id: int, rows: pa.Table) -> pa.Table:
        """Returns rows without those that were skipped."""
        for skip in self.skips.get(queue_id, ()):
            offsets = rows["queue_offset"]
            is_skipped = pc.and_(
                pc.greater_equal(offsets, skip.from_offset), pc.less_equal(offsets, skip.to_offset)
            )
            rows = rows.filter(pc.invert(is_skipped))
        return rows

    def progress_at(self, until: Mapping[int, int], epoch: int, digest: str) -> TopicProgress:
        """Returns the progress when everything up to an offset of each queue is published."""
        before = self.progress
        nexts = []
        lasts = []

        for queue_id in range(self.queues):
            first = before.next_offset(queue_id)
            last = before.last_offset(queue_id)
            end = until.get(queue_id, first)
            sent = before_skips(end - 1, self.skips.get(queue_id, ()))
            nexts.append(end)
            lasts.append(sent if sent >= first else last)

        return replace(
            before,
            next_offsets=tuple(nexts),
            last_offsets=tuple(lasts),
            epoch=epoch,
            digest=digest,
        )


def group_by_topic(offsets: Mapping[Queue, int]) -> dict[str, dict[int, int]]:
    """Returns the offsets of queues by topic."""
    by_topic: dict[str, dict[int, int]] = {}
    for (name, queue_id), offset in offsets.items():
        by_topic.setdefault(name, {})[queue_id] = offset
    return by_topic


def begin_of(publisher: PublisherSettings, start: Start, name: str, topic: Topic) -> str:
    """Returns the setting `begin` as it counts for a topic: one that is new begins at its first."""
    return EARLIEST if start.is_new(name, topic.epoch) else publisher.begin


def first_offsets(begin: str, rows: CommittedRows, ends: Mapping[int, int]) -> dict[int, int]:
    """Returns where queues begin that were never published.

    Input: the setting `begin`; where each queue ends.
    """
    if begin == LATEST or not any(ends.values()):
        return dict(ends)

    at = begin_at(begin)
    if at is None:
        assert begin == EARLIEST  # the settings were read
        first = rows.begins(ends)
    else:
        first = {**ends, **rows.first_since(at)}
    return {queue_id: min(first[queue_id], end) for queue_id, end in ends.items()}


def record_bytes_max(settings: Settings, publisher: PublisherSettings) -> int:
    """Returns the max.message.bytes that a destination needs."""
    return publisher.record_bytes_max or p.batch_bytes_max(settings.transaction.message_bytes_max)


def wanted_topics(publisher: PublisherSettings, catalog: Mapping[str, Topic]) -> dict[str, Topic]:
    """Returns the topics of a lake that a publisher publishes: those it names, or all of users'."""
    if publisher.topics:
        return {name: catalog[name] for name in publisher.topics if name in catalog}
    return {name: topic for name, topic in catalog.items() if name not in p.SYSTEM_REAL_TOPICS}


def require_nobody_else(
    log: ProgressLog, lake_id: str, publisher: PublisherSettings, topic: str
) -> None:
    """Checks that no other publisher, and no other lake, has a topic's destination.

    Errors: PublishError.
    """
    destination = publisher.destination_of(topic)
    for other_lake, other_name, _ in log.others(lake_id, publisher.name, destination):
        if other_lake == lake_id:
            raise PublishError(
                f"publisher {other_name} of this lake publishes to the Kafka topic {destination}, "
                f"and {publisher.name} is to publish topic {topic} there: give each topics or "
                "destinations of its own, or `txlake publish adopt` hands it over"
            )

        raise PublishError(
            f"lake {other_lake} publishes to the Kafka topic {destination}, and this lake is "
            f"{lake_id}: it was rebuilt, or made anew; `txlake publish adopt --name "
            f"{publisher.name}` says where this one goes on, or name another destination"
        )
