"""The status of publishers: how far they are behind, the active process, why one has stopped.

For `txlake publish status`; for a job's status, metrics and alerts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pipelines.errors import JobError
from pipelines.kafka_client.group_members import MemberGroup, Members
from pipelines.publish.committed import CommittedEpochs, CommittedRows, Queue, open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.process import elected_process, group_of
from pipelines.publish.progress import ProgressLog, Skip, Stop
from pipelines.publish.topics import wanted_topics
from pipelines.settings import PublisherSettings, Settings
from storage.rows import milliseconds
from txlake._lake import Lake, Topic
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
    """The lag of a topic.

    `published`: its next offset in each queue; None if the topic was never published; `lag`:
    messages that are committed and not published.
    """

    topic: str
    destination: str
    published: tuple[int, ...] | None
    lag: int


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
        if not self.lag:
            return 0
        return None if self.oldest_at is None else max(0, now_ms - self.oldest_at)


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
            "lag_ms": publisher.lag_ms(now_ms) if topic.lag else 0,
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

    topics = topic_lags(lake, epochs, publisher, log)
    return replace(
        status,
        topics=tuple(topics),
        lag=sum(topic.lag for topic in topics),
        oldest_at=_oldest_at(lake, epochs, topics, is_ending),
    )


def topic_lags(
    lake: Lake, epochs: CommittedEpochs, publisher: PublisherSettings, log: ProgressLog
) -> list[TopicLag]:
    """Returns the lag of each topic of a publisher behind the newest committed epoch."""
    mine = log.of(lake.lake_id, publisher.name)
    lags = []

    for name, topic in sorted(wanted_topics(publisher, lake.topics()).items()):
        progress = mine.get(name)
        ends = _ends(epochs.ends, name, topic)
        nexts = {q: 0 if progress is None else progress.next_offset(q) for q in ends}

        lags.append(
            TopicLag(
                name,
                publisher.destination_of(name),
                None if progress is None else tuple(nexts.values()),
                sum(max(0, ends[q] - nexts[q]) for q in ends),
            )
        )
    return lags


def _ends(ends: Mapping[Queue, int], name: str, topic: Topic) -> dict[int, int]:
    return {queue_id: ends.get((name, queue_id), 0) for queue_id in range(topic.queue_count)}


def _oldest_at(
    lake: Lake, epochs: CommittedEpochs, lags: Iterable[TopicLag], is_ending: Callable[[], bool]
) -> int | None:
    """Returns when the oldest message that is not published was committed; ms."""
    first_epochs = []
    topics = lake.topics()

    for lag in lags:
        if lag.lag and not is_ending():
            first_epochs += _first_epochs(lake, epochs, lag, topics[lag.topic])

    if not first_epochs:
        return None
    committed_at = epochs.committed_after(min(first_epochs) - 1)
    return None if committed_at is None else milliseconds(committed_at)


def _first_epochs(lake: Lake, epochs: CommittedEpochs, lag: TopicLag, topic: Topic) -> list[int]:
    """Returns the epoch of the first message that is not published, of each queue behind."""
    rows = CommittedRows(lake, lag.topic, topic)
    ends = _ends(epochs.ends, lag.topic, topic)
    begins = rows.begins(ends)
    published = lag.published or ()

    for queue_id in ends:
        position = published[queue_id] if queue_id < len(published) else 0
        rows.seek(queue_id, max(position, begins[queue_id]))

    try:
        tables = rows.peek(ends, 1, ["epoch"])
    except OffsetOutOfRangeError:  # retention has deleted it meanwhile
        return []
    return [table["epoch"][0].as_py() for table in tables.values() if table.num_rows]
