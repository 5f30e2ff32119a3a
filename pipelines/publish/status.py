"""The status of publishers: how far they are behind, the active process, why one has stopped.

For `txlake publish status`; for a job's status, metrics and alerts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pipelines.errors import JobError
from pipelines.kafka_client.group_members import MemberGroup, Members
from pipelines.publish.committed import CommittedEpochs, CommittedRows, open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.process import elected_process, group_of
from pipelines.publish.progress import ProgressLog, Skip, Stop, after_skips
from pipelines.publish.topics import begin_of, first_offsets, wanted_topics
from pipelines.settings import PublisherSettings, Settings
from storage.rows import milliseconds
from txlake._lake import Lake
from txlake.errors import OffsetOutOfRangeError

COLUMNS: Final = (
    "publisher",
    "topic",
    "destination",
    "published",
    "lag",
    "lag_ms",
    "active",
    "stopped",
)


@dataclass(frozen=True)
class TopicLag:
    """The lag of a topic. Units: `oldest_at`, epoch ms.

    `published`: its next offset in each queue; None if the topic was never published; `lag`:
    messages that are committed and not published; `oldest_at`: when the oldest of them was
    committed, None if there is none, or if the lake does not tell.
    """

    topic: str
    destination: str
    published: tuple[int, ...] | None
    lag: int
    oldest_at: int | None = None

    def lag_ms(self, now_ms: int) -> int | None:
        """Returns for how long the oldest message waits; 0 if none does, None if unknown."""
        return _lag_ms(self.lag, self.oldest_at, now_ms)


@dataclass(frozen=True)
class PublisherStatus:
    """The status of one publisher. Units: `oldest_at`, epoch ms.

    `active`: the process that Kafka has elected, None if none runs; `lag`: messages that are
    committed and not published; `oldest_at`: when the oldest of them was committed, None if there
    is none, or if the lake does not tell; `stop`: why it has stopped; `skips`: the messages that
    operators have skipped. `unknown_reason`: why Kafka does not tell all of this; None if it does.
    """

    publisher: str
    lake_id: str
    active: str | None = None
    standbys: tuple[str, ...] = ()
    topics: tuple[TopicLag, ...] = ()
    lag: int = 0
    oldest_at: int | None = None
    stop: Stop | None = None
    skips: tuple[Skip, ...] = ()
    unknown_reason: str | None = None

    def lag_ms(self, now_ms: int) -> int | None:
        """Returns for how long the oldest message waits; 0 if none does, None if unknown."""
        return _lag_ms(self.lag, self.oldest_at, now_ms)


def _lag_ms(lag: int, oldest_at: int | None, now_ms: int) -> int | None:
    if not lag:
        return 0
    return None if oldest_at is None else max(0, now_ms - oldest_at)


def read_publishers(
    settings: Settings, names: Iterable[str] | None = None
) -> list[PublisherStatus]:
    """Returns the status of the publishers of the settings; with `names` of these only.

    Errors: KafkaAwayError, KafkaRefusedError; LakeError; StoreAwayError.
    """
    lake, epochs = _newest_epochs(settings)
    wanted = dict.fromkeys(settings.publish if names is None else names)
    return [_status(lake, epochs, settings.publish[name], MemberGroup.describe) for name in wanted]


def find_publishers(
    settings: Settings,
    describe: Callable[[MemberGroup], Members] = MemberGroup.describe,
    is_ending: Callable[[], bool] = lambda: False,
) -> list[PublisherStatus]:
    """Returns the status of all publishers; what Kafka does not tell is its `unknown_reason`.

    Input: `describe` returns the members of a group; `is_ending` is called before the lake is
    read: publishers not read by then are left out.
    Errors: LakeError; StoreAwayError.
    """
    if not settings.publish:
        return []

    lake, epochs = _newest_epochs(settings)
    statuses = []
    for publisher in settings.publish.values():
        try:
            status = _status(lake, epochs, publisher, describe, is_ending)
        except JobError as error:
            status = PublisherStatus(publisher.name, lake.lake_id, unknown_reason=str(error))

        if is_ending():
            break
        statuses.append(status)

    return statuses


def topic_rows(publishers: Iterable[PublisherStatus], now_ms: int) -> list[dict[str, Any]]:
    """Returns the topics of publishers as rows.

    Output: COLUMNS; `published`: the sum of the queues' next offsets; `lag`: messages.
    """
    return [
        {
            "publisher": publisher.publisher,
            "topic": topic.topic,
            "destination": topic.destination,
            "published": None if topic.published is None else sum(topic.published),
            "lag": topic.lag,
            "lag_ms": topic.lag_ms(now_ms),
            "active": publisher.active,
            "stopped": None if publisher.stop is None else publisher.stop.reason,
        }
        for publisher in publishers
        for topic in publisher.topics
    ]


def _newest_epochs(settings: Settings) -> tuple[Lake, CommittedEpochs]:
    lake = open_lake(settings.lake.path, settings.lake.store)
    epochs = CommittedEpochs(lake)
    epochs.refresh()
    return lake, epochs


def _status(
    lake: Lake,
    epochs: CommittedEpochs,
    publisher: PublisherSettings,
    describe: Callable[[MemberGroup], Members],
    is_ending: Callable[[], bool] = lambda: False,
) -> PublisherStatus:
    """Returns the status of one publisher. Errors: those of `read_publishers`."""
    log = Destination(publisher).progress()
    group = MemberGroup(
        publisher.bootstrap_servers,
        publisher.client,
        group_of(lake.lake_id, publisher.name),
        elected_process(publisher.name),
    )
    members = describe(group)

    owner = (lake.lake_id, publisher.name)
    status = PublisherStatus(
        publisher.name,
        lake.lake_id,
        members.active,
        members.others,
        stop=log.stops.get(owner),
        skips=tuple(log.skips.get(owner, ())),
    )
    if is_ending():
        return status

    topics = topic_lags(lake, epochs, publisher, log, is_ending)
    known = [topic.oldest_at for topic in topics if topic.oldest_at is not None]
    return replace(
        status,
        topics=tuple(topics),
        lag=sum(topic.lag for topic in topics),
        oldest_at=min(known, default=None),
    )


def topic_lags(
    lake: Lake,
    epochs: CommittedEpochs,
    publisher: PublisherSettings,
    log: ProgressLog,
    is_ending: Callable[[], bool] = lambda: False,
) -> list[TopicLag]:
    """Returns the lag of each topic of a publisher behind the newest committed epoch.

    Messages that are deleted, skipped, or older than where a topic begins, do not count.
    """
    mine = log.of(lake.lake_id, publisher.name)
    start = log.start_of(lake.lake_id, publisher.name, publisher.topics, epochs.epoch)
    committed_at: dict[int, int | None] = {}
    lags = []

    for name, topic in sorted(wanted_topics(publisher, lake.topics()).items()):
        progress = mine.get(name)
        ends = {q: epochs.ends.get((name, q), 0) for q in range(topic.queue_count)}
        nexts = {q: 0 if progress is None else progress.next_offset(q) for q in ends}
        lag = TopicLag(
            name,
            publisher.destination_of(name),
            None if progress is None else tuple(nexts.values()),
            sum(max(0, ends[q] - nexts[q]) for q in ends),
        )

        if lag.lag and not is_ending():
            rows = CommittedRows(lake, name, topic)
            begins = rows.begins(ends)
            if progress is None:
                begin = begin_of(publisher, start, name, topic)
                begins = first_offsets(begin, rows, ends)

            skips = log.skips_of(lake.lake_id, publisher.name, name)
            positions = {
                q: min(ends[q], after_skips(max(begins[q], nexts[q]), skips.get(q, ())))
                for q in ends
            }
            epoch = _first_epoch(rows, positions, ends)
            if epoch is not None and epoch not in committed_at:
                committed_at[epoch] = _committed_at(epochs, epoch)
            lag = replace(
                lag,
                lag=sum(_count(positions[q], ends[q], skips.get(q, ())) for q in ends),
                oldest_at=None if epoch is None else committed_at[epoch],
            )
        lags.append(lag)

    return lags


def _count(position: int, end: int, skips: Iterable[Skip]) -> int:
    """Returns how many messages from a position to the end of a queue are not skipped.

    Input: the skips of the queue, in the order of offsets; they can overlap.
    """
    count = 0
    for skip in skips:
        count += max(0, min(skip.from_offset, end) - position)
        position = max(position, skip.to_offset + 1)
    return count + max(0, end - position)


def _first_epoch(
    rows: CommittedRows, positions: Mapping[int, int], ends: Mapping[int, int]
) -> int | None:
    """Returns the epoch of the first message from the positions on, if there is one."""
    for queue_id, position in positions.items():
        rows.seek(queue_id, position)

    try:
        tables = rows.peek(ends, 1, ["epoch"])
    except OffsetOutOfRangeError:  # retention has deleted it meanwhile
        return None
    first = [table["epoch"][0].as_py() for table in tables.values() if table.num_rows]
    return min(first, default=None)


def _committed_at(epochs: CommittedEpochs, epoch: int) -> int | None:
    """Returns when an epoch was committed; ms. Of one that is deleted, when the next one was."""
    committed_at = epochs.committed_after(epoch - 1)
    return None if committed_at is None else milliseconds(committed_at)
