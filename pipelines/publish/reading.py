"""Committed records of Kafka, read up to an end: the progress topic, the last record of a queue.

A `read_committed` consumer sees nothing behind an open Kafka transaction, whoever has opened it. So
a read goes up to the end of the log at its start, and waits for transactions that are open before
it: a publisher that believed less would publish twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.connection import (
    Cluster,
    Partition,
    client_config,
    new_consumer,
)
from txlake import protocol as p

_POLL_S: Final = 0.5
# How long a look waits without anything new, as behind an open transaction of others; then it is
# tried again, and said.
_OPEN_S: Final = 10.0
_STATISTICS_MS: Final = 2_000  # of 16,000 partitions they are some 20 MB
_LOOK_BACK: Final = 16  # records
_LOOK_GROWTH: Final = 4  # how many times as far the next look goes back
_LOOKS_MAX: Final = 11  # the last one goes 16 million records back
_QUEUE_OFFSET: Final = re.compile(r"0|[1-9][0-9]{0,18}")


def begins_and_ends(
    cluster: Cluster, partitions: list[Partition]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Returns where each partition begins and where it ends. Errors: KafkaAwayError."""
    return cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)


def read_committed(
    bootstrap_servers: str,
    client: Mapping[str, str],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    *,
    is_patient: bool = True,
) -> Iterator[Any]:
    """Returns the committed records from `starts` to `ends`.

    Input: `is_patient`: waits for open transactions; else the records behind them are left out.
    Errors: KafkaAwayError; StartError for settings that a consumer does not take.
    """
    remaining = {partition for partition, end in ends.items() if starts[partition] < end}
    if not remaining:
        return

    reader = _Reader(bootstrap_servers, client)
    try:
        reader.assign([(partition, starts[partition]) for partition in sorted(remaining)])
        fetched = 0

        while remaining:
            fetched_before = fetched
            fetched = reader.fetched({partition: ends[partition] for partition in remaining})
            if fetched != fetched_before:
                reader.count_news()
            reader.require_news(
                f"{sorted(remaining)}: a Kafka transaction is open, or nothing came"
            )

            message = reader.poll()
            if message is None:
                continue

            error = message.error()
            partition = (str(message.topic()), int(message.partition() or 0))
            offset = int(message.offset() or 0)
            if error is None:
                if partition in remaining and offset < ends[partition]:
                    reader.count_news()
                    yield message
                if offset + 1 >= ends[partition]:
                    remaining.discard(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                if offset >= ends[partition] or not is_patient:
                    remaining.discard(partition)
            elif not error.retriable() and error.code() not in _TRANSIENT:
                raise KafkaAwayError(f"{partition[0]} cannot be read: {error.str()}")
    except KafkaException as failed:
        raise KafkaAwayError(f"records could not be read: {failed.args[0].str()}") from failed
    finally:
        reader.close()


class _Reader:
    """A `read_committed` consumer that knows for how long it has brought nothing new.

    Only the time within `poll` counts: a caller may take as long as it likes for a record.
    """

    def __init__(self, bootstrap_servers: str, client: Mapping[str, str]) -> None:
        self._waited_s = 0.0
        self._positions: dict[Partition, int] = {}
        self._consumer = new_consumer(
            {
                **client_config(bootstrap_servers, client),
                "group.id": "txlake-publish-reader",  # it commits nothing and joins no group
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "statistics.interval.ms": _STATISTICS_MS,
                "stats_cb": self._note_positions,
            }
        )

    def assign(self, starts: Iterable[tuple[Partition, int]]) -> None:
        """Begins to read partitions, each from an offset on."""
        self._consumer.assign([TopicPartition(*partition, at) for partition, at in starts])
        self.count_news()

    def poll(self) -> Any:
        """Returns the next record or event; None if none came within a moment."""
        began_at = time.monotonic()
        message = self._consumer.poll(_POLL_S)
        self._waited_s += time.monotonic() - began_at
        return message

    def fetched(self, ends: Mapping[Partition, int]) -> int:
        """Returns up to where partitions were fetched, summed; each counts up to its end.

        It grows within records of aborted transactions, too, which `poll` does not return.
        """
        return sum(min(self._positions.get(partition, 0), end) for partition, end in ends.items())

    def count_news(self) -> None:
        """Counts something new: the wait begins anew."""
        self._waited_s = 0.0

    def require_news(self, lacking: str) -> None:
        """Checks that it has not waited for too long. Errors: KafkaAwayError."""
        if self._waited_s > _OPEN_S:
            raise KafkaAwayError(f"{lacking} for {_OPEN_S:.0f} s")

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _note_positions(self, statistics: str) -> None:
        self._positions = {
            (name, int(number)): int(partition["next_offset"])
            for name, topic in json.loads(statistics)["topics"].items()
            for number, partition in topic["partitions"].items()
            if partition["next_offset"] > 0
        }


def find_record(
    bootstrap_servers: str,
    client: Mapping[str, str],
    partition: Partition,
    span: tuple[int, int],
    lake_id: str,
    queue_offset: int,
) -> int | None:
    """Returns Kafka's offset of a lake's record with a queue offset; None if it is not there.

    Queue offsets of a run grow, so that it is halved again and again. Records of another lake
    stand before those of this one. Input: where the run begins and ends in the partition.
    Errors: KafkaAwayError; StartError for settings that a consumer does not take.
    """
    low, high = span
    reader = _Reader(bootstrap_servers, client)
    try:
        while low < high:
            middle = (low + high) // 2
            published = _first_published(reader, partition, middle, high)
            if published is None:
                high = middle
                continue

            at, record = published
            is_ours = record.lake_id == lake_id
            if is_ours and record.queue_offset == queue_offset:
                return at
            if is_ours and record.queue_offset > queue_offset:
                high = middle
            else:
                low = at + 1
    except KafkaException as failed:
        raise KafkaAwayError(f"records could not be read: {failed.args[0].str()}") from failed
    finally:
        reader.close()
    return None


def _first_published(
    reader: _Reader, partition: Partition, start: int, end: int
) -> tuple[int, PublishedRecord] | None:
    """Returns the first record of a publisher from an offset on, and before another; or None.

    Output: its offset in Kafka, and itself.
    """
    topic, number = partition
    reader.assign([(partition, start)])

    while True:
        reader.require_news(f"{topic} partition {number}: nothing came")
        message = reader.poll()
        if message is None:
            continue

        error = message.error()
        if error is None:
            reader.count_news()
            at = int(message.offset() or 0)
            if at >= end:
                return None
            record = published_record(message)
            if record is not None:
                return at, record
        elif error.code() == KafkaError._PARTITION_EOF:
            return None
        elif not error.retriable() and error.code() not in _TRANSIENT:
            raise KafkaAwayError(f"{topic} cannot be read: {error.str()}")


_TRANSIENT: Final = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT_QUEUE,
)


@dataclass(frozen=True)
class PublishedRecord:
    """A record that a publisher has written, by its headers."""

    lake_id: str
    queue_offset: int
    place: str
    value: bytes | None


def published_record(message: Any) -> PublishedRecord | None:
    """Returns a record as a publisher has written it; None for one of another writer.

    A publisher's has our headers as we write them: anybody can write others of the same names.
    """
    headers = dict(reversed(message.headers() or []))  # of a name the first one counts
    lake_id = _text(headers.get(p.LAKE_ID))
    queue_offset = _text(headers.get(p.QUEUE_OFFSET))

    if not lake_id or not _QUEUE_OFFSET.fullmatch(queue_offset):
        return None
    return PublishedRecord(lake_id, int(queue_offset), _text(headers.get(p.PLACE)), message.value())


def last_records(
    bootstrap_servers: str,
    client: Mapping[str, str],
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> dict[Partition, PublishedRecord]:
    """Returns the newest record of each partition, where it has one that a publisher wrote.

    Aborted records, and records of others, are skipped: it looks back further and further.
    Input: where the partitions begin and end. Errors: KafkaAwayError.
    """
    newest: dict[Partition, PublishedRecord] = {}
    until = {partition: end for partition, end in ends.items() if begins[partition] < end}
    back = _LOOK_BACK

    for _ in range(_LOOKS_MAX):
        if not until:
            break

        starts = {partition: max(begins[partition], ends[partition] - back) for partition in until}
        for message in read_committed(bootstrap_servers, client, starts, until):
            record = published_record(message)
            if record is not None:
                newest[str(message.topic()), int(message.partition())] = record

        # What was looked through has none, and everything there is decided.
        until = {
            partition: start
            for partition, start in starts.items()
            if partition not in newest and start > begins[partition]
        }
        back *= _LOOK_GROWTH

    return newest


def _text(value: bytes | None) -> str:
    """Returns a header's value; empty if it is none, or no text."""
    try:
        return "" if value is None else value.decode()
    except UnicodeDecodeError:
        return ""
