"""The topics of one publisher, opened: destinations are made or checked, and topics begin."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from pipelines.publish.committed import CommittedEpochs, CommittedRows, require_same_messages
from pipelines.publish.destination import (
    Destination,
    KafkaTopic,
    require_fit,
    require_same_end,
    require_same_topic,
    require_unpublished,
)
from pipelines.publish.errors import PublishError
from pipelines.publish.progress import NOTHING, ProgressLog, Start, TopicProgress
from pipelines.publish.records import RecordMaker
from pipelines.publish.topics import (
    PublishedTopic,
    begin_of,
    first_offsets,
    record_bytes_max,
    require_nobody_else,
    wanted_topics,
)
from pipelines.publish.transactions import Transactions
from pipelines.settings import PublisherSettings, Settings
from txlake import protocol as p
from txlake._lake import Lake, Topic


class TopicOpener:
    """Opens the topics of one publisher.

    `topics`: those that are open, by name. `start`: since when the publisher has its topics; None
    before they were opened first.
    Errors: PublishError; KafkaAwayError; LakeError, StoreAwayError.
    """

    def __init__(
        self,
        settings: Settings,
        publisher: PublisherSettings,
        lake: Lake,
        epochs: CommittedEpochs,
        destination: Destination,
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._record_bytes_max = record_bytes_max(settings, publisher)
        self._lake = lake
        self._epochs = epochs
        self._destination = destination
        self.start: Start | None = None
        self.topics: dict[str, PublishedTopic] = {}

    def require_nobody_else(self, log: ProgressLog) -> None:
        """Checks that no other publisher has the destination of one of our topics."""
        for topic in self._wanted():
            require_nobody_else(log, self._lake.lake_id, self._publisher, topic)

    def _wanted(self) -> dict[str, Topic]:
        return wanted_topics(self._publisher, self._lake.topics())

    def new(self) -> dict[str, Topic]:
        """Returns the topics that are new, or have more queues, for `open`."""
        return {
            name: topic
            for name, topic in self._wanted().items()
            if name not in self.topics or self.topics[name].queues < topic.queue_count
        }

    def open(
        self, topics: Mapping[str, Topic], log: ProgressLog, transactions: Transactions
    ) -> list[TopicProgress]:
        """Opens topics: destinations are made, and compared.

        Input: `log`: the progress of now, where another publisher may just have begun.
        Output: the progress of the topics that were never published, for the caller to write, as
        `start`.
        """
        if self.start is None:
            owner = (self._lake.lake_id, self._publisher.name)
            self.start = log.start_of(*owner, self._publisher.topics, self._epochs.epoch)

        begun = self._open(topics, log, transactions, self.start) if topics else []
        return [self.topics[name].progress for name in begun]

    def _open(
        self,
        topics: Mapping[str, Topic],
        log: ProgressLog,
        transactions: Transactions,
        start: Start,
    ) -> list[str]:
        """Opens topics. Output: the names of those that were never published."""
        for name in topics:
            self._require_free_name(name)
            require_nobody_else(log, self._lake.lake_id, self._publisher, name)
        self._lake.require_whole(topics)

        mine = log.of(self._lake.lake_id, self._publisher.name)
        known = {name: self._progress_of(name, mine) for name in topics}
        begun = self._open_destinations(topics, known, transactions)

        for name, topic in topics.items():
            rows = CommittedRows(self._lake, name, topic)
            progress = known[name]
            if progress is None:
                progress = self._first_progress(name, topic, rows, begun[name], start)

            maker = RecordMaker(name, self._lake.lake_id, has_keys=self._publisher.key == "keys")
            skips = log.skips_of(self._lake.lake_id, self._publisher.name, name)
            self.topics[name] = PublishedTopic(
                name, topic.queue_count, progress, rows, maker, skips
            )
            self.topics[name].seek()

        return list(begun)

    def _progress_of(self, name: str, mine: Mapping[str, TopicProgress]) -> TopicProgress | None:
        return self.topics[name].progress if name in self.topics else mine.get(name)

    def _open_destinations(
        self,
        topics: Mapping[str, Topic],
        known: Mapping[str, TopicProgress | None],
        transactions: Transactions,
    ) -> dict[str, KafkaTopic]:
        """Makes destinations, or lets them grow, and compares those that exist already.

        Input: the progress of each topic; None if it was never published.
        Output: the destinations of the topics that were never published.
        """
        names = {name: self._publisher.destination_of(name) for name in topics}
        described_topics = self._destination.describe(names.values())
        existing: dict[str, int] = {}
        new = {at for name, at in names.items() if known[name] is None}
        self._require_no_collision(new - described_topics.keys())

        for name, topic in topics.items():
            destination = names[name]
            queues = topic.queue_count
            progress = known[name]
            described = described_topics.get(destination)

            if progress is None and described is None:
                self._destination.make(name, queues, self._record_bytes_max)
                continue

            if progress is not None:
                require_same_topic(progress, destination, described)
            assert described is not None  # it is the one that was published to

            if progress is not None and described.partitions < queues:
                self._destination.grow(destination, queues)
                transactions.wait_for_partitions(destination, queues)
                described = replace(described, partitions=queues)

            require_fit(name, queues, described, self._publisher, self._record_bytes_max)
            existing[destination] = queues

        ends = self._destination.ends(existing)
        for name, destination in names.items():
            if destination not in existing:
                continue
            progress = known[name]
            if progress is None:
                require_unpublished(name, destination, ends[destination])
            else:
                last = ends[destination].last
                require_same_end(progress, self._lake.lake_id, last)
                rows = CommittedRows(self._lake, name, topics[name])
                require_same_messages(self._epochs, rows, progress, last)

        begun = [name for name in topics if known[name] is None]
        described_topics = self._destination.describe_made(names[name] for name in begun)
        return {name: described_topics[names[name]] for name in begun}

    def _require_no_collision(self, new: Set[str]) -> None:
        """Checks that Kafka takes new destinations beside each other and all its topics.

        Errors: PublishError.
        """
        if not new:
            return

        names = {self._publisher.destination_of(name): name for name in self._wanted()}
        # Of thousands of topics only those are compared that can be the same to Kafka.
        alike: dict[str, list[str]] = {}
        for name in sorted(self._destination.topic_names()):
            alike.setdefault(name.replace(".", "_"), []).append(name)

        for destination in sorted(new):
            existing = alike.setdefault(destination.replace(".", "_"), [])
            other = p.colliding_topic(destination, existing)
            existing.append(destination)
            if other is None:
                continue

            topic = names[destination]
            of_topic = f", to which topic {names[other]} goes" if other in names else ""
            raise PublishError(
                f"topic {topic} would be published to {destination}, and Kafka takes no topic of "
                f"that name beside {other}{of_topic}: to it '.' and '_' are one; leave {topic} "
                f"out, with topics = [...] in [publish.{self._publisher.name}], and name it in a "
                "publisher of another destination"
            )

    def _require_free_name(self, name: str) -> None:
        """Checks that a destination is none of our own topics. Errors: PublishError."""
        destination = self._publisher.destination_of(name)
        is_own_kafka = self._publisher.bootstrap_servers == self._settings.kafka.bootstrap_servers
        own = set(self._settings.kafka.topics().values()) if is_own_kafka else set()
        prefix = self._settings.kafka.check_topic_prefix if is_own_kafka else "\0"

        is_progress_topic = destination == self._publisher.progress_topic
        if is_progress_topic or p.is_own_topic(destination, own, prefix):
            raise PublishError(
                f"topic {name} would be published to {destination}, which is a Kafka topic of "
                "txlake's own; name another destination"
            )

    def _first_progress(
        self,
        name: str,
        topic: Topic,
        rows: CommittedRows,
        destination: KafkaTopic,
        start: Start,
    ) -> TopicProgress:
        """Returns the progress of a topic that was never published: where it begins."""
        ends = {q: self._epochs.ends.get((name, q), 0) for q in range(topic.queue_count)}
        begin = begin_of(self._publisher, start, name, topic)
        first = first_offsets(begin, rows, ends)

        return TopicProgress(
            name,
            self._publisher.destination_of(name),
            destination.topic_id,
            tuple(first[q] for q in sorted(ends)),
            tuple(NOTHING for _ in ends),
            self._epochs.epoch,
            self._epochs.digest,
        )
