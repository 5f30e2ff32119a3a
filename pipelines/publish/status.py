"""The status of publishers: how far they are behind, the active process, why one has stopped.

For `txlake publish status`; for a job's status, metrics and alerts, too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.kafka_client.group_members import MemberGroup, Members
from pipelines.publish.committed import CommittedEpochs, open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.process import elects, group_of
from pipelines.publish.progress import ProgressLog, Skip, Stop, TopicProgress
from pipelines.publish.topics import wanted_topics
from pipelines.settings import PublisherSettings, Settings
from txlake._lake import Lake


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
    """The status of one publisher.

    `active`: the process that Kafka has elected, None if none runs; `lag`: messages; `lag_ms`: how
    long the oldest of them has been committed, 0 if there is none, None if the lake does not tell;
    `stop`: why it has stopped; `skips`: the messages that operators have skipped.
    """

    publisher: str
    lake_id: str
    active: str | None
    standbys: tuple[str, ...]
    topics: tuple[TopicLag, ...]
    lag: int
    lag_ms: int | None
    stop: Stop | None
    skips: tuple[Skip, ...]


def read_publishers(
    settings: Settings, names: Iterable[str] | None = None
) -> list[PublisherStatus]:
    """Returns the status of the publishers of the settings; with `names` of these only.

    Errors: KafkaAwayError, KafkaRefusedError; LakeError; StoreAwayError.
    """
    lake = open_lake(settings.lake.path, settings.lake.store)
    epochs = CommittedEpochs(lake)
    epochs.refresh()

    wanted = dict.fromkeys(settings.publish if names is None else names)
    return [_status(lake, epochs, settings.publish[name]) for name in wanted]


def _status(lake: Lake, epochs: CommittedEpochs, publisher: PublisherSettings) -> PublisherStatus:
    log = Destination(publisher).progress()
    group = MemberGroup(
        publisher.bootstrap_servers,
        publisher.client,
        group_of(lake.lake_id, publisher.name),
        elects(publisher.name),
    )
    members: Members = group.describe()

    topics = topic_lags(lake, epochs, publisher, log)
    lag = sum(topic.lag for topic in topics)
    owner = (lake.lake_id, publisher.name)
    mine = log.of(*owner)
    behind = [mine.get(topic.topic) for topic in topics if topic.lag]

    return PublisherStatus(
        publisher.name,
        lake.lake_id,
        members.active,
        members.others,
        tuple(topics),
        lag,
        _lag_ms(epochs, behind),
        log.stops.get(owner),
        tuple(log.skips.get(owner, ())),
    )


def topic_lags(
    lake: Lake, epochs: CommittedEpochs, publisher: PublisherSettings, log: ProgressLog
) -> list[TopicLag]:
    """Returns the lag of each topic of a publisher behind the newest committed epoch."""
    mine = log.of(lake.lake_id, publisher.name)
    lags = []

    for name, topic in sorted(wanted_topics(publisher, lake.topics()).items()):
        progress = mine.get(name)
        ends = {q: epochs.ends.get((name, q), 0) for q in range(topic.queue_count)}
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


def _lag_ms(epochs: CommittedEpochs, behind: list[TopicProgress | None]) -> int | None:
    """Returns how long the oldest of the epochs that are not published has been committed."""
    if not behind:
        return 0

    published = [0 if progress is None else progress.epoch for progress in behind]
    committed_at = epochs.committed_after(min(published))
    if committed_at is None:
        return None
    age = dt.datetime.now(dt.timezone.utc) - committed_at
    return max(0, age // dt.timedelta(milliseconds=1))
