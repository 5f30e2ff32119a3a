"""Where and when a message was published: its record in Kafka, found by its queue offset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.errors import JobError, KafkaRefusedError
from pipelines.output import instant
from pipelines.publish.committed import open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.progress import ProgressLog, TopicProgress, is_topic_of, read_log
from pipelines.publish.topics import wanted_topics
from pipelines.settings import PublisherSettings, Settings


@dataclass(frozen=True)
class Publication:
    """What one publisher has made of a message. Units: `at`, ms.

    `destination`, `partition`, `kafka_offset`: where its record is; None if it is not there. `at`:
    when the Kafka transaction with it was written; `is_exact`: else it was then, or before.
    `epoch`: the newest committed epoch at that time. `text`: all of it in a sentence.
    """

    publisher: str
    text: str
    destination: str | None = None
    partition: int | None = None
    kafka_offset: int | None = None
    at: int | None = None
    is_exact: bool = False
    epoch: int | None = None


@dataclass(frozen=True)
class _Step:
    """A progress record. Units: `at`, ms."""

    at: int
    progress: TopicProgress


@dataclass(frozen=True)
class _History:
    """The progress topic, as one publisher of this lake has written it.

    `steps`: the records of each topic that Kafka still has, the oldest first.
    """

    log: ProgressLog
    steps: dict[str, list[_Step]]

    def runs(self, topic_id: str, partition: int) -> list[int]:
        """Returns Kafka's offsets at which adoptions by any lake began a run in a partition."""
        return [adoption.end_of(partition) for _, adoption in self.log.adoptions_of(topic_id)]


class PublicationFinder:
    """A look for the records of messages, at one time.

    The progress topic of a publisher is read once, and a Kafka that does not answer is asked once.
    Errors of the methods: LakeError; StoreAwayError.
    """

    def __init__(self, settings: Settings) -> None:
        self._publishers = settings.publish
        self._lake = open_lake(settings.lake.path, settings.lake.store)
        self._topics = self._lake.topics()
        self._destinations: dict[str, Destination] = {}  # by publisher
        self._failures: dict[str, JobError] = {}  # by publisher, where its Kafka does not answer
        self._histories: dict[str, _History] = {}  # by publisher

    def find(self, topic: str, queue_id: int, queue_offset: int) -> list[Publication]:
        """Returns what each publisher of a topic has made of a message.

        A Kafka that does not answer is said.
        """
        publications = []
        for publisher in self._publishers.values():
            if topic not in wanted_topics(publisher, self._topics):
                continue

            try:
                publications.append(self._find(publisher, topic, queue_id, queue_offset))
            except JobError as error:
                if not isinstance(error, KafkaRefusedError):  # another topic can be allowed
                    self._failures[publisher.name] = error
                text = f"nobody knows whether publisher {publisher.name} has published it: {error}"
                publications.append(Publication(publisher.name, text))
        return publications

    def _find(
        self, publisher: PublisherSettings, topic: str, queue_id: int, queue_offset: int
    ) -> Publication:
        name = publisher.name
        if name in self._failures:
            raise self._failures[name]
        if name not in self._destinations:
            self._destinations[name] = Destination(publisher)
        destination = self._destinations[name]
        history = self._history_of(destination, name)
        steps = history.steps.get(topic, [])
        if not steps:
            return Publication(
                name, f"not published yet by {name}, which has not begun with its topic"
            )

        newest = steps[-1].progress
        position = newest.next_offset(queue_id)
        if queue_offset >= position:
            return Publication(
                name,
                f"not published yet by {name}: in {newest.destination}, partition {queue_id}, "
                f"queue offset {position} comes next",
            )

        runs = history.runs(newest.topic_id, queue_id)
        kafka_offset = destination.find(
            newest.destination, queue_id, self._lake.lake_id, queue_offset, runs
        )
        if kafka_offset is None:
            return Publication(
                name,
                f"not in {newest.destination}, partition {queue_id}, and {name} is past it: it was "
                "before the begin, an operator skipped it, or Kafka has deleted it",
            )

        number = _first_behind(steps, queue_id, queue_offset)
        first = steps[number]
        is_exact = number > 0
        when = instant(first.at) if is_exact else f"{instant(first.at)} or before"
        return Publication(
            name,
            f"published by {name} to {newest.destination}, partition {queue_id}, offset "
            f"{kafka_offset}, at {when}, up to epoch {first.progress.epoch}",
            newest.destination,
            queue_id,
            kafka_offset,
            first.at,
            is_exact,
            first.progress.epoch,
        )

    def _history_of(self, destination: Destination, name: str) -> _History:
        if name not in self._histories:
            self._histories[name] = _read_history(destination, self._lake.lake_id, name)
        return self._histories[name]


def _read_history(destination: Destination, lake_id: str, publisher: str) -> _History:
    steps: dict[str, list[_Step]] = defaultdict(list)

    def records() -> Iterator[tuple[bytes | None, bytes | None]]:
        for message in destination.progress_records():
            record = message.key(), message.value()
            if is_topic_of(message.key(), lake_id, publisher):
                for progress in read_log([record]).topics.values():
                    steps[progress.topic].append(_Step(int(message.timestamp()[1]), progress))
            yield record

    return _History(read_log(records()), steps)


def _first_behind(steps: list[_Step], queue_id: int, queue_offset: int) -> int:
    """Returns the number of the step that published a message last; the newest is behind it.

    An adoption can begin again before the message, which is then published anew.
    """
    number = len(steps)
    while number and steps[number - 1].progress.next_offset(queue_id) > queue_offset:
        number -= 1
    return number
