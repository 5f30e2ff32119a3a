"""Where and when a message was published: its record in Kafka, found by its queue offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.errors import JobError
from pipelines.output import instant
from pipelines.publish.committed import open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.progress import TopicProgress, read_topic_record
from pipelines.publish.topics import wanted_topics
from pipelines.settings import PublisherSettings, Settings
from txlake._lake import Lake


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


def find_publications(
    settings: Settings, topic: str, queue_id: int, queue_offset: int
) -> list[Publication]:
    """Returns what each publisher of a topic has made of a message.

    A Kafka that does not answer is said. Errors: LakeError; StoreAwayError.
    """
    lake = open_lake(settings.lake.path, settings.lake.store)
    publications = []

    for publisher in settings.publish.values():
        if topic not in wanted_topics(publisher, lake.topics()):
            continue
        try:
            publications.append(_find(lake, publisher, topic, queue_id, queue_offset))
        except JobError as error:
            text = f"nobody knows whether publisher {publisher.name} has published it: {error}"
            publications.append(Publication(publisher.name, text))

    return publications


def _find(
    lake: Lake, publisher: PublisherSettings, topic: str, queue_id: int, queue_offset: int
) -> Publication:
    name = publisher.name
    destination = Destination(publisher)
    steps = list(_steps(destination, lake.lake_id, name, topic))
    if not steps:
        return Publication(name, f"not published yet by {name}, which has not begun with its topic")

    newest = steps[-1].progress
    position = newest.next_offset(queue_id)
    if queue_offset >= position:
        return Publication(
            name,
            f"not published yet by {name}: in {newest.destination}, partition {queue_id}, queue "
            f"offset {position} comes next",
        )

    after = [
        number for number, step in enumerate(steps) if _is_behind(step, queue_id, queue_offset)
    ]
    first = steps[after[0]]
    is_exact = after[0] > 0
    kafka_offset = destination.find(newest.destination, queue_id, lake.lake_id, queue_offset)
    if kafka_offset is None:
        return Publication(
            name,
            f"not in {newest.destination}, partition {queue_id}, and {name} is past it: it was "
            "before the begin, an operator skipped it, or Kafka has deleted it",
        )

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


def _steps(destination: Destination, lake_id: str, name: str, topic: str) -> Iterator[_Step]:
    """Yields the progress records of a topic that Kafka still has, the oldest first."""
    for message in destination.progress_records():
        progress = read_topic_record(message.key(), message.value(), lake_id, name, topic)
        if progress is not None:
            yield _Step(int(message.timestamp()[1]), progress)


def _is_behind(step: _Step, queue_id: int, queue_offset: int) -> bool:
    return step.progress.next_offset(queue_id) > queue_offset
