"""Where and when a message was published: its record in Kafka, found by its queue offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.errors import JobError, KafkaRefusedError
from pipelines.output import instant
from pipelines.publish.committed import open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.progress import TopicProgress, read_topic_record
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


class PublicationFinder:
    """A look for the records of messages, at one time.

    The progress of a topic is read once, and a Kafka that does not answer is asked once.
    Errors of the methods: LakeError; StoreAwayError.
    """

    def __init__(self, settings: Settings) -> None:
        self._publishers = settings.publish
        self._lake = open_lake(settings.lake.path, settings.lake.store)
        self._topics = self._lake.topics()
        self._destinations: dict[str, Destination] = {}  # by publisher
        self._failures: dict[str, JobError] = {}  # by publisher, where its Kafka does not answer
        self._steps: dict[tuple[str, str], list[_Step]] = {}  # by publisher and topic

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
        steps = self._steps_of(destination, name, topic)
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

        kafka_offset = destination.find(
            newest.destination, queue_id, self._lake.lake_id, queue_offset
        )
        if kafka_offset is None:
            return Publication(
                name,
                f"not in {newest.destination}, partition {queue_id}, and {name} is past it: it was "
                "before the begin, an operator skipped it, or Kafka has deleted it",
            )

        number = next(
            number for number, step in enumerate(steps) if _is_behind(step, queue_id, queue_offset)
        )
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

    def _steps_of(self, destination: Destination, name: str, topic: str) -> list[_Step]:
        """Returns the progress records of a topic that Kafka still has, the oldest first."""
        steps = self._steps.get((name, topic))
        if steps is None:
            steps = list(_steps(destination, self._lake.lake_id, name, topic))
            self._steps[name, topic] = steps
        return steps


def _steps(destination: Destination, lake_id: str, name: str, topic: str) -> Iterator[_Step]:
    """Yields the progress records of a topic that Kafka still has, the oldest first."""
    for message in destination.progress_records():
        progress = read_topic_record(message.key(), message.value(), lake_id, name, topic)
        if progress is not None:
            yield _Step(int(message.timestamp()[1]), progress)


def _is_behind(step: _Step, queue_id: int, queue_offset: int) -> bool:
    return step.progress.next_offset(queue_id) > queue_offset
