"""Kafka records read without Spark, for a batch that Spark cannot read.

Spark counts a record's time in microseconds. Where a topic was not LogAppendTime, a producer chose
the time, and one of 10^18 ms does not fit: each task that meets it fails, at every try.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.admin import Partition
from pipelines.kafka_client.connection import REQUEST_TIMEOUT_S, client_config
from pipelines.settings import KafkaSettings
from txlake._records import Header, readable_headers
from txlake.protocol import INSTANT_MS_MAX

log = logging.getLogger("txlake.kafka")

KAFKA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
# A batch ends with either; the client holds as many bytes again of the records behind it.
_BATCH_RECORDS: Final = 1_000
_BATCH_BYTES: Final = 8 * 1024 * 1024


def read_without_spark(
    kafka: KafkaSettings, spans: Mapping[Partition, range]
) -> Iterator[pa.RecordBatch]:
    """Returns the records of some offsets, as Spark's source gives them.

    A time that no row can hold becomes one just outside of the range of rows. Output: KAFKA.
    Errors: KafkaAwayError.
    """
    ends = {place: span.stop for place, span in spans.items() if len(span)}
    config = {
        **client_config(kafka.bootstrap_servers, kafka.client),
        "group.id": "txlake-plain",  # it commits nothing and joins no group
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
        "queued.max.messages.kbytes": _BATCH_BYTES // 1024,
    }
    consumer = Consumer(config)
    rows: list[dict[str, Any]] = []
    size = 0

    try:
        consumer.assign([TopicPartition(*place, spans[place].start) for place in ends])
        while ends:
            message = consumer.poll(REQUEST_TIMEOUT_S)
            if message is None:
                raise KafkaAwayError(
                    f"no record within {REQUEST_TIMEOUT_S:.0f} s of {sorted(ends)}"
                )

            error = message.error()
            place = (str(message.topic()), int(message.partition() or 0))
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                # It may use no group, and asks for none. The client retries all other errors.
                continue

            offset = int(message.offset() or 0)
            if error is None and place in ends and offset < ends[place]:
                rows.append(_row(message))
                size += len(message)
            if place in ends and offset + (error is None) >= ends[place]:
                del ends[place]

            if len(rows) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=KAFKA)
                rows = []
                size = 0

        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=KAFKA)
    except KafkaException as failed:
        raise KafkaAwayError(f"records could not be read: {failed.args[0]}") from failed
    finally:
        consumer.close()


def _row(message: Any) -> dict[str, Any]:
    headers = _headers(message)
    at_ms = min(max(message.timestamp()[1], -1), INSTANT_MS_MAX + 1)
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": at_ms * 1_000,
        "key": message.key(),
        "value": message.value(),
        "headers": headers and [{"key": name, "value": value} for name, value in headers],
    }


def _headers(message: Any) -> list[Header] | None:
    """Returns a record's headers without those whose names are not UTF-8; these are logged.

    Spark gives them, too, with U+FFFD in their names.
    """
    headers, unreadable = readable_headers(message)
    if unreadable:
        log.warning(
            "%s partition %s offset %s: %d headers are left out, their names are not UTF-8",
            message.topic(),
            message.partition(),
            message.offset(),
            unreadable,
        )
    return headers or None
