"""Committed records of Kafka, read up to an end: the progress topic, the last record of a queue.

A `read_committed` consumer sees nothing behind an open Kafka transaction, whoever has opened it. So
a read goes up to the end of the log at its start, and waits for transactions that are open before
it: a publisher that believed less would publish twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.connection import (
    Cluster,
    Partition,
    client_config,
)
from txlake import protocol as p

_POLL_S: Final = 0.5
# How long a look waits for open transactions of others; then it is tried again, and said.
_OPEN_S: Final = 10.0
_LOOK_BACK: Final = 16  # records; the next look goes back 16 times as far
_LOOKS_MAX: Final = 6


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
    Errors: KafkaAwayError.
    """
    remaining = {partition for partition, end in ends.items() if starts[partition] < end}
    if not remaining:
        return

    consumer = _consumer(bootstrap_servers, client)
    try:
        consumer.assign(
            [TopicPartition(*partition, starts[partition]) for partition in sorted(remaining)]
        )
        deadline = time.monotonic() + _OPEN_S

        while remaining:
            if time.monotonic() > deadline:
                raise KafkaAwayError(
                    f"{sorted(remaining)}: a Kafka transaction is open, or nothing came, for "
                    f"{_OPEN_S:.0f} s"
                )

            message = consumer.poll(_POLL_S)
            if message is None:
                continue

            error = message.error()
            partition = (str(message.topic()), int(message.partition() or 0))
            offset = int(message.offset() or 0)
            if error is None:
                if partition in remaining and offset < ends[partition]:
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
        consumer.close()


def _consumer(bootstrap_servers: str, client: Mapping[str, str]) -> Consumer:
    return Consumer(
        {
            **client_config(bootstrap_servers, client),
            "group.id": "txlake-publish-reader",  # it commits nothing and joins no group
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )


def find_record(
    bootstrap_servers: str,
    client: Mapping[str, str],
    partition: Partition,
    span: tuple[int, int],
    lake_id: str,
    queue_offset: int,
) -> int | None:
    """Returns Kafka's offset of a lake's record with a queue offset; None if it is not there.

    Queue offsets of a partition grow, so that it is halved again and again. Records of another lake
    stand before those of this one. Input: where the partition begins and ends.
    Errors: KafkaAwayError.
    """
    low, high = span
    consumer = _consumer(bootstrap_servers, client)
    try:
        while low < high:
            middle = (low + high) // 2
            message = _first_published(consumer, partition, middle, high)
            if message is None:
                high = middle
                continue

            record = LastRecord(message)
            is_ours = record.lake_id == lake_id
            if is_ours and record.queue_offset == queue_offset:
                return int(message.offset())
            if is_ours and record.queue_offset > queue_offset:
                high = middle
            else:
                low = int(message.offset()) + 1
    except KafkaException as failed:
        raise KafkaAwayError(f"records could not be read: {failed.args[0].str()}") from failed
    finally:
        consumer.close()
    return None


def _first_published(consumer: Consumer, partition: Partition, start: int, end: int) -> Any:
    """Returns the first record of a publisher from an offset on, and before another; or None."""
    consumer.assign([TopicPartition(*partition, start)])
    deadline = time.monotonic() + _OPEN_S

    while time.monotonic() < deadline:
        message = consumer.poll(_POLL_S)
        if message is None:
            continue

        error = message.error()
        if error is None:
            if int(message.offset() or 0) >= end:
                return None
            if is_published(message):
                return message
        elif error.code() == KafkaError._PARTITION_EOF:
            return None
        elif not error.retriable() and error.code() not in _TRANSIENT:
            raise KafkaAwayError(f"{partition[0]} cannot be read: {error.str()}")

    topic, number = partition
    raise KafkaAwayError(f"{topic} partition {number}: nothing came for {_OPEN_S:.0f} s")


_TRANSIENT: Final = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT_QUEUE,
)


class LastRecord:
    """The newest committed record of a partition that a publisher has written."""

    def __init__(self, message: Any) -> None:
        headers = dict(reversed(message.headers() or []))  # of a name the first one counts
        self.lake_id = _text(headers.get(p.LAKE_ID))
        self.queue_offset = int(_text(headers.get(p.QUEUE_OFFSET)) or -1)
        self.place = _text(headers.get(p.PLACE))
        self.value: bytes | None = message.value()


def is_published(message: Any) -> bool:
    """Returns whether a publisher has written a record."""
    names = {name for name, _ in message.headers() or []}
    return p.QUEUE_OFFSET in names and p.LAKE_ID in names


def last_records(
    bootstrap_servers: str,
    client: Mapping[str, str],
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> dict[Partition, LastRecord]:
    """Returns the newest record of each partition, where it has one that a publisher wrote.

    Aborted records, and records of others, are skipped: it looks back further and further.
    Input: where the partitions begin and end. Errors: KafkaAwayError.
    """
    records: dict[Partition, LastRecord] = {}
    remaining = {partition for partition in ends if begins[partition] < ends[partition]}
    back = _LOOK_BACK

    for _ in range(_LOOKS_MAX):
        if not remaining:
            break

        starts = {
            partition: max(begins[partition], ends[partition] - back) for partition in remaining
        }
        until = {partition: ends[partition] for partition in remaining}
        for message in read_committed(bootstrap_servers, client, starts, until):
            if is_published(message):
                records[str(message.topic()), int(message.partition())] = LastRecord(message)

        remaining = {
            partition
            for partition in remaining
            if partition not in records and starts[partition] > begins[partition]
        }
        back *= _LOOK_BACK

    return records


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
