"""A lake filled from Kafka: the job's own epochs over a range that ends, as fast as they go.

Checks are not sent: those that are due at the end stay due, and the job sends them. After an
interruption the next run goes on behind the landed records; a range that the lake has landed adds
no rows.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from pipelines.epoch.clock import EpochClock
from pipelines.epoch.land import SparkLander
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.runner import EpochRunner
from pipelines.errors import StartError
from pipelines.jvm.heap import landing_heap
from pipelines.jvm.session import start_session
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.intake import Intake
from pipelines.output import instant
from pipelines.replay.archive import EPOCH_RECORDS
from pipelines.replay.epochs import RecordedAsker
from pipelines.replay.rebuild import Rebuilt, to_result
from pipelines.replay.refill import Identity
from pipelines.replay.source import ProgressCallback
from pipelines.settings import Settings
from storage.lake.epochs import Range
from storage.lake.lake import Lake
from storage.lake.lock import LakeLock
from storage.lake.open_table import changing
from storage.lake.progress import read_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BoundedKafka(KafkaAdmin):
    """Kafka's topics as if their logs began at given offsets."""

    def __init__(self, settings: Settings, starts: Mapping[Partition, int]) -> None:
        super().__init__(settings, settings.kafka.topics())
        self._starts = dict(starts)

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the offset at which each partition begins for us.

        Errors: StartError if Kafka no longer has it.
        """
        offsets = super().beginning_offsets(partitions)

        for (topic, partition), start in self._starts.items():
            first = offsets.get((topic, partition), start)
            if start < first:
                raise StartError(
                    f"Kafka has {topic} partition {partition} from offset {first} on; offset "
                    f"{start} was asked for"
                )

        return {at: self._starts.get(at, first) for at, first in offsets.items()}


def identity_from_kafka(settings: Settings) -> Identity:
    """Returns the log that the settings name, as Kafka knows it. Errors: KafkaAwayError."""
    kafka = KafkaAdmin(settings, settings.kafka.topics())
    return Identity(
        kafka.cluster_id(), kafka.topic_ids(), settings.parameters(), settings.wire_limits()
    )


def offsets_since(kafka: KafkaAdmin, at_ms: int) -> dict[Partition, int]:
    """Returns the offsets of the first records that were stored at an instant or later.

    Errors: StartError if there are none; KafkaAwayError.
    """
    partitions = kafka.partitions()
    starts = kafka.offsets_at(partitions, at_ms)

    if starts == kafka.end_offsets(partitions):
        raise StartError(
            f"Kafka has no record that was stored at {instant(at_ms)} or later: nothing was added"
        )

    return starts


def offsets_before(kafka: KafkaAdmin, at_ms: int) -> dict[Partition, int]:
    """Returns the offsets behind the last records that were stored before an instant.

    Errors: StartError if there are none; KafkaAwayError.
    """
    partitions = kafka.partitions()
    ends = kafka.offsets_at(partitions, at_ms)

    if ends == kafka.beginning_offsets(partitions):
        raise StartError(
            f"Kafka has no record that was stored before {instant(at_ms)}: nothing was added"
        )

    return ends


def backfill(
    settings: Settings,
    starts: Mapping[Partition, int] | None = None,
    ends: Mapping[Partition, int] | None = None,
    progress: ProgressCallback | None = None,
) -> Rebuilt:
    """Lands and decides the records of Kafka between two offsets of each partition.

    Input: offsets by (topic, partition); by default the first record, and the last one there is
    now.
    Errors: JobError, LakeError.
    """
    _require_topics(settings)

    owner = f"{socket.gethostname()}:{os.getpid()}:backfill"
    with ExitStack() as resources:
        lock = LakeLock(settings.lake.location(), owner)
        resources.callback(lock.release)
        spark = start_session("txlake backfill", settings.spark, lock.fds)
        resources.enter_context(changing(settings.lake.location()))

        return run_backfill(spark, settings, owner, starts or {}, ends or {}, progress)


def _require_topics(settings: Settings) -> None:
    """Checks that Kafka has the topics of a lake that has no epoch yet: nothing is made before.

    Errors: StartError, KafkaAwayError, LakeError.
    """
    kafka = KafkaAdmin(settings, settings.kafka.topics())
    missing = sorted(set(kafka.names.values()) - kafka.existing_names())
    if not missing:
        return

    lake = Lake(settings.lake.location())
    if not lake.is_table("epochs") or read_progress(lake).last is None:
        raise StartError(
            f"Kafka has no topic {missing[0]}: nothing was added; do [kafka] bootstrap_servers and "
            "the names of topics say what is meant?"
        )


def run_backfill(
    spark: SparkSession,
    settings: Settings,
    owner: str,
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    progress: ProgressCallback | None = None,
) -> Rebuilt:
    """Does what `backfill` does, in a running session, on a lake that is locked already."""
    started = time.monotonic()
    lake = Lake(settings.lake.location())
    kafka = BoundedKafka(settings, starts)

    kafka.check()

    clock = EpochClock()
    intake = Intake.of(settings, landing_heap(spark))
    lander = SparkLander(spark)
    epoch_settings = EpochSettings.of(settings, owner, lander.parallelism, intake)

    with closing(
        EpochRunner(lander, lake, kafka, RecordedAsker(), epoch_settings, clock.now_ms)
    ) as epochs:
        lake.create(dt.datetime.now(dt.timezone.utc))
        before = epochs.resume()
        epochs.check_identity(before.newest)
        epochs.recover()
        if epochs.last is not None:
            clock.not_before(epochs.last.epoch_at)

        _check_starts(epochs, starts)
        beginnings = epochs.start_offsets()
        kafka_ends = kafka.end_offsets(beginnings)
        _require_offsets(kafka_ends, starts, ends)
        targets = {
            partition: max(beginnings[partition], min(ends.get(partition, end), end))
            for partition, end in kafka_ends.items()
        }

        halves = 0
        for step in _split_ranges(beginnings, targets):
            next_offsets = {r.topic_partition: r.to_offset for r in step}
            epochs.run(next_offsets)
            halves += sum(
                r.to_offset - r.from_offset for r in step if r.topic == settings.kafka.half_topic
            )

            if progress is not None:
                progress(_count(beginnings, next_offsets), _count(beginnings, targets))

        last = 0 if epochs.last is None else epochs.last.epoch
        return to_result(before.next_epoch, last, halves, started)


def _check_starts(epochs: EpochRunner, starts: Mapping[Partition, int]) -> None:
    landed = epochs.progress.landed()
    for (topic, partition), start in starts.items():
        end = landed.get((topic, partition), start)
        if start > end:
            raise StartError(
                f"the lake has landed {topic} partition {partition} up to offset {end}; from "
                f"offset {start} on was asked for: what is between would be missing"
            )


def _require_offsets(
    kafka_ends: Mapping[Partition, int],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> None:
    """Checks that Kafka has the requested offsets. Input: `kafka_ends`: each partition's end."""
    for topic, partition in [*starts, *ends]:
        if (topic, partition) not in kafka_ends:
            names = ", ".join(sorted({name for name, _ in kafka_ends}))
            raise StartError(
                f"{topic} partition {partition} was asked for: the job reads the topics {names}, "
                "and has no such partition"
            )

    for (topic, partition), start in starts.items():
        end = kafka_ends[topic, partition]
        if start > end:
            raise StartError(
                f"Kafka has {topic} partition {partition} up to offset {end}; from offset {start} "
                "on was asked for"
            )


def _split_ranges(
    beginnings: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Iterator[tuple[Range, ...]]:
    """Returns the ranges of each epoch: the same share of each partition."""
    parts = -(-_count(beginnings, ends) // EPOCH_RECORDS)
    offsets = dict(beginnings)

    for part in range(1, parts + 1):
        next_offsets = {
            p: beginnings[p] + (ends[p] - beginnings[p]) * part // parts for p in beginnings
        }
        yield tuple(
            Range(*p, offsets[p], next_offsets[p], next_offsets[p]) for p in sorted(next_offsets)
        )
        offsets = next_offsets


def _count(beginnings: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int:
    return sum(end - beginnings[partition] for partition, end in ends.items())
