"""Comparison of what is published with the lake, record by record, and with what a consumer saw.

Each difference is one sentence. No difference: each queue's Kafka partition holds each of its
committed messages once, in queue order, as the table has it; the consumer saw them in that order;
and between two Kafka transactions no message transaction was published in part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.chaos.compare import Facts, first
from bench.chaos.kafka_consumer import SeenInKafka, queue_offset_of
from bench.chaos.names import PUBLISHED_PREFIX, PUBLISHER
from bench.chaos.stage import Stage
from pipelines.publish.committed import CommittedEpochs, open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.progress import TopicProgress, read_log
from pipelines.publish.topics import wanted_topics
from pipelines.settings import Settings
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

Unit = tuple[str, str, int]  # producer group, transaction id, epoch


@dataclass(frozen=True)
class Published:
    """What stands in Kafka.

    `records`: (queue offset, value) in Kafka's order, by topic and queue; `transactions`: the
    progress records that each Kafka transaction has written, in their order.
    """

    records: Mapping[tuple[str, int], list[tuple[int, bytes | None]]]
    transactions: list[list[TopicProgress]]


def is_published(stage: Stage) -> bool:
    """Returns whether all that is committed is published, and seen by the Kafka consumer."""
    settings = stage.settings
    lake = open_lake(settings.lake.path, settings.lake.store)
    epochs = CommittedEpochs(lake)
    epochs.refresh()
    publisher = settings.publish[PUBLISHER]
    mine = Destination(publisher).progress().of(lake.lake_id, PUBLISHER)

    messages = 0
    for name, topic in wanted_topics(publisher, lake.topics()).items():
        for queue_id in range(topic.queue_count):
            end = epochs.ends.get((name, queue_id), 0)
            if name not in mine or mine[name].next_offset(queue_id) < end:
                return False
            messages += end
    return stage.seen_in_kafka.count() >= messages


def read_published(settings: Settings) -> Published:
    """Reads all destinations and the progress topic."""
    publisher = settings.publish[PUBLISHER]
    destination = Destination(publisher)
    lake = open_lake(settings.lake.path, settings.lake.store)
    records: dict[tuple[str, int], list[tuple[int, bytes | None]]] = defaultdict(list)
    for topic in wanted_topics(publisher, lake.topics()):
        for message in destination.records(f"{PUBLISHED_PREFIX}{topic}"):
            records[topic, message.partition()].append((queue_offset_of(message), message.value()))

    return Published(records, list(_transactions(destination)))


def _transactions(destination: Destination) -> Iterator[list[TopicProgress]]:
    """Yields the progress of each Kafka transaction: its marker leaves a gap behind its records."""
    group: list[TopicProgress] = []
    next_offset = 0
    for message in destination.progress_records():
        if message.offset() != next_offset and group:
            yield group
            group = []
        next_offset = message.offset() + 1
        group += read_log([(message.key(), message.value())]).topics.values()

    if group:
        yield group


def compare_published(facts: Facts, published: Published, seen: SeenInKafka) -> list[str]:
    """Returns every difference, the first of each kind."""
    tables = _tables(facts)
    kinds = (
        _records(tables, published),
        _torn(facts, published),
        _seen(published, seen),
    )
    return [text for kind in kinds for text in first(list(kind))]


def _tables(facts: Facts) -> dict[tuple[str, int], list[tuple[int, bytes | None]]]:
    """Returns (queue offset, body) in queue order, of the topics that are to be published."""
    tables: dict[tuple[str, int], list[tuple[int, bytes | None]]] = defaultdict(list)
    for topic in _published_topics(facts):
        for row in facts.messages[topic]:
            tables[topic, row["queue_id"]].append((row["queue_offset"], row["body"]))
    return tables


def _records(
    tables: Mapping[tuple[str, int], list[tuple[int, bytes | None]]], published: Published
) -> Iterator[str]:
    """Compares each partition with its queue: the same messages, once, in the same order."""
    for topic, queue_id in sorted({*tables, *published.records}):
        wanted = tables.get((topic, queue_id), [])
        records = published.records.get((topic, queue_id), [])
        if records == wanted:
            continue

        offsets = [offset for offset, _ in records]
        name = f"topic {topic} queue {queue_id}"
        lost = sorted({offset for offset, _ in wanted} - set(offsets))
        twice = sorted({offset for offset in offsets if offsets.count(offset) > 1})
        yield (
            f"{name}: {len(wanted)} messages in the table, {len(records)} records in Kafka; lost "
            f"{lost[:5]}, twice {twice[:5]}, in order: {offsets == sorted(offsets)}"
        )


def _torn(facts: Facts, published: Published) -> Iterator[str]:
    """Names the message transactions of which some Kafka transaction has published a part.

    What a transaction has delivered in one epoch is published at once; a delayed message of it
    comes in a later epoch.
    """
    by_queue = _units_by_queue(facts)
    sizes = Counter(unit for units in by_queue.values() for _, unit in units)
    positions: dict[tuple[str, int], int] = {}

    for number, group in enumerate(published.transactions):
        counts: Counter[Unit] = Counter()
        for progress in group:
            for queue_id, end in enumerate(progress.next_offsets):
                queue = (progress.topic, queue_id)
                units = by_queue.get(queue, [])
                taken = units[positions.get(queue, 0) : bisect_left(units, (end,))]
                positions[queue] = bisect_left(units, (end,))
                counts.update(unit for _, unit in taken)

        for unit, count in counts.items():
            if count != sizes[unit]:
                yield (
                    f"Kafka transaction {number} has {count} of {sizes[unit]} messages of "
                    f"transaction {unit[1]} in epoch {unit[2]}"
                )


def _units_by_queue(facts: Facts) -> dict[tuple[str, int], list[tuple[int, Unit]]]:
    """Returns (queue offset, message transaction) in queue order, by topic and queue."""
    by_queue: dict[tuple[str, int], list[tuple[int, Unit]]] = defaultdict(list)
    for topic in _published_topics(facts):
        for row in facts.messages[topic]:
            if row["transaction_id"] is not None:
                unit = (row["producer_group"] or "", row["transaction_id"], row["epoch"])
                by_queue[topic, row["queue_id"]].append((row["queue_offset"], unit))
    return by_queue


def _published_topics(facts: Facts) -> list[str]:
    """Returns the users' topics: our own two are not published unless they are named."""
    return [
        topic for topic in facts.messages if topic not in (CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC)
    ]


def _seen(published: Published, seen: SeenInKafka) -> Iterator[str]:
    """Compares what the consumer saw with the topics: all of it, each once, in the same order."""
    by_queue: dict[tuple[str, int], list[tuple[int, bytes | None]]] = defaultdict(list)
    for topic, queue_id, queue_offset, _, body, _ in seen.rows():
        by_queue[topic.removeprefix(PUBLISHED_PREFIX), queue_id].append((queue_offset, body))

    for topic, queue_id in sorted({*by_queue, *published.records}):
        records = published.records.get((topic, queue_id), [])
        consumed = by_queue.get((topic, queue_id), [])
        if consumed != records:
            yield (
                f"topic {topic} queue {queue_id}: the Kafka consumer saw {len(consumed)} of "
                f"{len(records)} records, or in another order"
            )


def figures_of(facts: Facts, published: Published, seen: SeenInKafka) -> dict[str, Any]:
    """Returns what was published, for the report."""
    rows = seen.rows()
    sizes = Counter(unit for units in _units_by_queue(facts).values() for _, unit in units)
    return {
        "records": sum(map(len, published.records.values())),
        "queues": len(published.records),
        "kafka_transactions": len(published.transactions),
        "message_transactions_of_several": sum(size > 1 for size in sizes.values()),
        "seen_by_the_kafka_consumer": len(rows),
        "seen_more_than_once": sum(times > 1 for *_, times in rows),
    }
